#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>
#include <string>

#include "tools/commands.h"
#include "tools/output.h"

namespace cairn::tools {
namespace {

struct Arguments {
  std::string path;
  std::string second_path;
  std::optional<std::uint64_t> step;
  bool json = false;
  ExportOptions exporting;
  CollectOptions collecting;
  TuneOptions tuning;
  DoctorOptions doctoring;
};

CLI::App* AddCommand(CLI::App& app, const std::string& name, const std::string& help, Arguments& arguments) {
  CLI::App* command = app.add_subcommand(name, help);
  command->add_flag("--json", arguments.json, "Print JSON");
  return command;
}

CLI::App* AddTune(CLI::App& app, Arguments& arguments) {
  TuneOptions& tuning = arguments.tuning;
  CLI::App* const tune = AddCommand(
      app, "tune", "Measure this machine for some seconds and choose interval, memory and saves in flight", arguments);
  tune->add_option("root", arguments.path, "The directory for checkpoints; it must exist")->required();
  tune->add_option("--state-bytes", tuning.state_bytes, "Size of one checkpoint (of one rank): 12GB, 4GiB")->required();
  tune->add_option("--iteration-time", tuning.iteration_time, "One iteration without saves: 250ms, 1.5")->required();
  tune->add_option("--slowdown", tuning.slowdown, "How much longer training may take: 0.01, 1%")->required();
  tune->add_option("--mtbf", tuning.mtbf, "Mean time between failures of the whole job: 90m, 24h")->required();
  tune->add_option("--restart-time", tuning.restart_time, "From a failure until training continues")
      ->capture_default_str();
  tune->add_option("--update-time", tuning.update_time, "The part of an iteration that changes the state (optimizer)")
      ->capture_default_str();
  tune->add_option("--memory", tuning.memory, "Memory for the pool (default: a quarter of what is available)");
  tune->add_option("--device", tuning.device, "Where the tensors are")
      ->check(CLI::IsMember({"host", "cuda"}))
      ->capture_default_str();
  tune->add_option("--training-cores", tuning.training_cores, "Cores that training keeps busy (host: all, cuda: 0)");
  tune->add_option("--copy-rate", tuning.copy_rate, "Limit of copies in bytes per second, if below the measured rate");
  tune->add_option("--write-rate", tuning.write_rate, "Limit of writes, such as a quota or a share of a disk");
  tune->add_option("--probe-time", tuning.probe_time, "About how long to measure the disk")->capture_default_str();
  return tune;
}

CLI::App* AddDoctor(CLI::App& app, Arguments& arguments) {
  CLI::App* const doctor =
      AddCommand(app, "doctor", "Check what this machine supports, and what each missing thing costs", arguments);
  doctor->add_option("root", arguments.path, "An existing directory")->required();
  doctor->add_option("--probe-time", arguments.doctoring.probe_time, "About how long to measure the disk")
      ->capture_default_str();
  return doctor;
}

int Run(int argc, char** argv) {
  CLI::App app(
      "Inspects Cairn checkpoints and the machine that writes them. Exit codes: 0 ok, 1 damaged or different, "
      "2 wrong usage or I/O error.",
      "cairn");
  app.set_version_flag("--version", std::string("cairn ") + CAIRN_VERSION);
  app.require_subcommand(1);
  Arguments arguments;
  const std::string root_help = "A directory of checkpoints";

  CLI::App* const list = AddCommand(
      app, "ls", "List a root's checkpoints by their manifests, oldest first (verify checks the shards)", arguments);
  list->add_option("root", arguments.path, root_help)->required();

  CLI::App* const show = AddCommand(app, "show", "Show names, shapes and values; reads no tensor data", arguments);
  show->add_option("path", arguments.path,
                   "A root (its newest checkpoint), a checkpoint's folder, or a safetensors file")
      ->required();
  show->add_option("--step", arguments.step, "The step to show, if the path is a root");

  CLI::App* const verify = AddCommand(app, "verify", "Read every byte and check its checksum", arguments);
  verify->add_option("path", arguments.path, "A root (all its checkpoints) or a checkpoint's folder")->required();
  verify->add_option("--step", arguments.step, "Only this step, if the path is a root");

  CLI::App* const diff = AddCommand(app, "diff", "Compare tensors: names, shapes, dtypes, bytes", arguments);
  const std::string side_help = "A checkpoint's folder, a safetensors file, or a root (its newest checkpoint)";
  diff->add_option("a", arguments.path, side_help)->required();
  diff->add_option("b", arguments.second_path, side_help)->required();

  CLI::App* const exporting = AddCommand(app, "export", "Write one plain .safetensors file", arguments);
  exporting->add_option("path", arguments.path, side_help)->required();
  exporting->add_option("--step", arguments.step, "The step to export, if the path is a root");
  exporting->add_option("--out", arguments.exporting.out, "The file to write; an existing one is replaced")->required();
  exporting->add_option("--names", arguments.exporting.names, "Only these tensors: names, or patterns with * and ?");
  exporting->add_flag("--copy-tied", arguments.exporting.copy_tied, "Also write tied names, as copies");

  CLI::App* const collect = AddCommand(app, "gc", "Remove old checkpoints, except pinned ones", arguments);
  collect->add_option("root", arguments.path, root_help)->required();
  collect->add_option("--keep-last", arguments.collecting.keep_last, "How many of the newest to keep")
      ->required()
      ->check(CLI::PositiveNumber);
  collect->add_option("--keep-every", arguments.collecting.keep_every, "Also keep steps divisible by this");
  collect->add_flag("--dry-run", arguments.collecting.dry_run, "Only print what would be removed; take no lock");

  CLI::App* const tune = AddTune(app, arguments);
  CLI::App* const doctor = AddDoctor(app, arguments);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kGood : kFailed;
  }
  if (list->parsed()) return List(arguments.path, arguments.json);
  if (show->parsed()) return Show(arguments.path, arguments.step, arguments.json);
  if (verify->parsed()) return Verify(arguments.path, arguments.step, arguments.json);
  if (diff->parsed()) return Diff(arguments.path, arguments.second_path, arguments.json);
  if (exporting->parsed()) {
    arguments.exporting.path = arguments.path;
    arguments.exporting.step = arguments.step;
    arguments.exporting.json = arguments.json;
    return Export(arguments.exporting);
  }
  if (tune->parsed()) {
    arguments.tuning.root = arguments.path;
    arguments.tuning.json = arguments.json;
    return Tune(arguments.tuning);
  }
  if (doctor->parsed()) {
    arguments.doctoring.root = arguments.path;
    arguments.doctoring.json = arguments.json;
    return Doctor(arguments.doctoring);
  }
  arguments.collecting.root = arguments.path;
  arguments.collecting.json = arguments.json;
  return Collect(arguments.collecting);
}

}  // namespace
}  // namespace cairn::tools

int main(int argc, char** argv) {
  try {
    const int code = cairn::tools::Run(argc, argv);
    errno = 0;
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
    return cairn::tools::ReportError(
        {cairn::StatusCode::kIoError, fmt::format("writing to standard output: {}", std::strerror(errno))});
  } catch (const std::exception& error) {
    return cairn::tools::ReportError({cairn::StatusCode::kInternal, error.what()});
  }
}
