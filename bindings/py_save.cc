#include "py_save.h"

#include <pybind11/stl.h>

#include "engine/kept_file.h"

namespace py = pybind11;

namespace cairn {

py::object PySave::Kept() const {
  const std::shared_ptr<const KeptFile> kept = Inside::Of(save_).kept();
  if (kept == nullptr) return py::none();
  py::list names;
  for (std::uint32_t i = 0; i < kept->table->size(); ++i) {
    if (kept->holds[i]) names.append((*kept->table)[i].name);
  }
  return py::make_tuple(kept->shard.file, names);
}

void BindSave(py::module_& module) {
  using namespace py::literals;
  py::class_<PySave>(module, "Save")
      .def_property_readonly("step", &PySave::step)
      .def_property_readonly("captured", &PySave::captured)
      .def_property_readonly("settled", &PySave::settled)
      .def_property_readonly("ended", &PySave::ended)
      .def("stats", &PySave::stats)
      .def("kept", &PySave::Kept)
      .def("cancel", &PySave::Cancel)
      .def("release", &PySave::Release)
      .def("wait_captured", &PySave::WaitCaptured, "timeout"_a)
      .def("wait_kept", &PySave::WaitKept, "timeout"_a)
      .def("want", &PySave::Want)
      .def("wait_durable", &PySave::WaitDurable, "timeout"_a)
      .def("wait_ended", &PySave::WaitEnded, "timeout"_a, "or_kept"_a = false);

  py::class_<PyHold>(module, "Hold")
      .def("release", &PyHold::Release)
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](PyHold& self, const py::args&) { self.Release(); });
}

}  // namespace cairn
