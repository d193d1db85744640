#include "py_save.h"

#include <pybind11/stl.h>

namespace py = pybind11;

namespace cairn {

void BindSave(py::module_& module) {
  using namespace py::literals;
  py::class_<PySave>(module, "Save")
      .def_property_readonly("step", &PySave::step)
      .def_property_readonly("captured", &PySave::captured)
      .def_property_readonly("settled", &PySave::settled)
      .def_property_readonly("ended", &PySave::ended)
      .def("stats", &PySave::stats)
      .def("cancel", &PySave::Cancel)
      .def("release", &PySave::Release)
      .def("wait_captured", &PySave::WaitCaptured, "timeout"_a)
      .def("wait_durable", &PySave::WaitDurable, "timeout"_a)
      .def("wait_ended", &PySave::WaitEnded, "timeout"_a);

  py::class_<PyHold>(module, "Hold")
      .def("release", &PyHold::Release)
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](PyHold& self, const py::args&) { self.Release(); });
}

}  // namespace cairn
