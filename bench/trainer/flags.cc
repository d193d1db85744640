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
      "SIGTERM and SIGINT end it after a last checkpoint, a second one at once.\n"
      "Exit: 0 trained, 1 training or a save failed, 2 misuse, 3 ended by a signal after a last checkpoint."};
  std::vector<std::string> sizes;
  std::string decay = "constant";
  app.add_option("--model", flags.model, "Model to train")->capture_default_str();
  app.add_option(
      "--size", sizes,
      "A size that differs from the published model's, NAME=NUMBER (vgg16: width; others: hidden, layers, ...)");
  app.add_option(
      "--init-from", flags.init_from,
      "Start from the weights in this folder, and with the sizes of its config.json, as Hugging Face has them");
  app.add_option("--data", flags.data,
                 "\"digits\", \"synthetic\" (noise in the model's shapes), or a folder that scripts/prepare-data made")
      ->capture_default_str();
  app.add_option("--sequence", flags.sequence, "Of text: tokens in a sample")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--steps", flags.steps, "Steps to have done in all at the end")->capture_default_str();
  app.add_option("--batch", flags.batch, "Samples that go through the model at once")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--accumulate", flags.accumulate, "Batches whose gradients make one step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--optimizer", flags.optimizer, "sgd (momentum 0.9) or adamw")
      ->check(CLI::IsMember({"sgd", "adamw"}))
      ->capture_default_str();
  app.add_option("--precision", flags.precision, "fp32, or bf16 weights with fp32 master weights and moments")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  app.add_option("--lr", flags.learning_rate, "Highest learning rate [0.01 for sgd, 0.0001 for adamw]")
      ->check(CLI::PositiveNumber);
  app.add_option("--warmup", flags.schedule.warmup, "Steps over which the learning rate rises")->capture_default_str();
  app.add_option("--decay", decay, "The learning rate after them: constant, or linear or cosine to 0 at --decay-steps")
      ->check(CLI::IsMember({"constant", "linear", "cosine"}))
      ->capture_default_str();
  app.add_option("--decay-steps", flags.schedule.steps, "Step at which the learning rate would be 0 [--steps]")
      ->check(CLI::PositiveNumber);
  app.add_option("--clip", flags.clip_norm, "Most that the gradients' norm may be, 0 for no limit")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
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
  app.add_option("--grace", flags.grace_seconds,
                 "Seconds after a first signal in which the last checkpoint must be durable")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--report", flags.report, "Write what happened to this JSON file at the end");
  try {
    app.parse(argc, argv);
    flags.sizes = ParseSizes(sizes);
    flags.schedule.decay = DecayFromName(decay);
    if (flags.schedule.steps == 0) flags.schedule.steps = flags.steps;
    if (flags.schedule.decay != Schedule::Decay::kConstant && flags.schedule.warmup >= flags.schedule.steps) {
      throw CLI::ValidationError("--warmup", "expected less than the " + std::to_string(flags.schedule.steps) +
                                                 " of --decay-steps, found " + std::to_string(flags.schedule.warmup));
    }
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kMisuse;
  }
  return std::nullopt;
}

}  // namespace cairn::trainer
