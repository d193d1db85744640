#include "flags.h"

#include <CLI/CLI.hpp>
#include <stdexcept>
#include <vector>

namespace cairn::trainer {
namespace {

std::map<std::string, std::int64_t> ParseSizes(const std::vector<std::string>& words) {
  std::map<std::string, std::int64_t> sizes;
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    std::int64_t value = 0;
    if (equals == std::string::npos || !CLI::detail::lexical_cast(word.substr(equals + 1), value)) {
      throw CLI::ValidationError("--size", "expected NAME=NUMBER, found " + word);
    }
    sizes[word.substr(0, equals)] = value;
  }
  return sizes;
}

}  // namespace

std::optional<int> ParseFlags(int argc, char** argv, Flags& flags) {
  constexpr int kMisuse = 2;
  CLI::App app{
      "Trains a model with libtorch and checkpoints it with Cairn.\n"
      "Prints a line for each step, and \"durable step=N\" the moment a checkpoint can no longer be lost.\n"
      "Exit: 0 trained, 1 training or a save failed, 2 misuse."};
  std::vector<std::string> sizes;
  app.add_option("--model", flags.model, "Model to train")->capture_default_str();
  app.add_option(
      "--size", sizes,
      "A size that differs from the published model's, NAME=NUMBER (vgg16: width; opt: hidden, layers, ...)");
  app.add_option(
      "--init-from", flags.init_from,
      "Start from the weights in this folder, and with the sizes of its config.json, as Hugging Face has them");
  app.add_option("--data", flags.data,
                 "\"digits\", a folder of pictures in the ImageNet layout, or what scripts/prepare-data made")
      ->capture_default_str();
  app.add_option("--sequence", flags.sequence, "Of text: tokens in a sample")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--steps", flags.steps, "Steps to have done in all at the end")->capture_default_str();
  app.add_option("--batch", flags.batch, "Samples a step")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--optimizer", flags.optimizer, "sgd (momentum 0.9) or adamw")
      ->check(CLI::IsMember({"sgd", "adamw"}))
      ->capture_default_str();
  app.add_option("--lr", flags.learning_rate, "Learning rate [0.01 for sgd, 0.0001 for adamw]")
      ->check(CLI::PositiveNumber);
  app.add_option("--seed", flags.seed, "Of weights, dropout and the order of the data")->capture_default_str();
  app.add_option("--device", flags.device, "Where to train")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--threads", flags.threads,
                 "CPU threads; results are bit-exact only for the same number [torch's choice]")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--checkpoint-dir", flags.checkpoint_dir, "Save checkpoints here");
  app.add_option("--every", flags.every, "Save after every so many steps, and after the last")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--resume", flags.resume, "Go on from the newest checkpoint, or start where there is none")
      ->needs("--checkpoint-dir");
  app.add_option("--in-flight", flags.in_flight, "Saves on their way at once")->capture_default_str();
  app.add_option("--host-memory", flags.host_memory_bytes, "Cap of the pinned pool, as 512MiB")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  app.add_option("--keep", flags.keep, "Checkpoints to keep, 0 for all")->capture_default_str();
  app.add_option("--report", flags.report, "Write what happened to this JSON file at the end");
  try {
    app.parse(argc, argv);
    flags.sizes = ParseSizes(sizes);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kMisuse;
  }
  return std::nullopt;
}

}  // namespace cairn::trainer
