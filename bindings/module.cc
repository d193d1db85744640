// cairn._core: the C++ API for the Python package, tensor by tensor. Trees and torch are handled in Python.
//
// No C++ thread ever takes the GIL: events wait in a list until Python takes them. The GIL is released wherever C++
// works or waits. Every wait returns ten times a second to check for signals.
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "plain_values.h"
#include "py_checkpointer.h"
#include "py_save.h"
#include "py_store_group.h"
#include "stored_tensors.h"
#include "tree_tensors.h"
#include "watched_save.h"

namespace {

std::atomic<bool> lost_a_save{false};

// Python has its exit code before it runs its atexit hooks, and nothing there can change it.
void EndOfProcess(int status, void* /*unused*/) {
  if (status != 0 || !lost_a_save) return;
  (void)std::fflush(nullptr);
  ::_exit(1);
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  (void)::on_exit(EndOfProcess, nullptr);
  module.def("fail_exit", [] { lost_a_save = true; });
  cairn::BindPlainValues(module);
  cairn::BindSave(module);
  cairn::BindStoredTensors(module);
  cairn::BindTreeTensors(module);
  cairn::BindStoreGroup(module);
  cairn::BindWatcher(module);
  cairn::BindCheckpointer(module);
}
