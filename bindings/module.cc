// cairn._core: the C++ API for the Python package, tensor by tensor. Trees and torch are handled in Python.
//
// No C++ thread ever takes the GIL: events wait in a list until Python takes them. The GIL is released wherever C++
// works or waits. Every wait returns ten times a second to check for signals.
#include <pybind11/pybind11.h>

#include "py_checkpointer.h"
#include "py_save.h"
#include "py_store_group.h"
#include "stored_tensors.h"
#include "tree_tensors.h"
#include "watched_save.h"

PYBIND11_MODULE(_core, module) {
  cairn::BindSave(module);
  cairn::BindStoredTensors(module);
  cairn::BindTreeTensors(module);
  cairn::BindStoreGroup(module);
  cairn::BindWatcher(module);
  cairn::BindCheckpointer(module);
}
