#include "flags.h"

#include <CLI/CLI.hpp>
#include <limits>
#include <sstream>
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

std::vector<std::pair<std::string, std::string>> SharedFlags(const Flags& flags) {
  std::ostringstream rate;
  rate.precision(std::numeric_limits<double>::max_digits10);
  if (flags.learning_rate) rate << *flags.learning_rate;
  std::string sizes;
  for (const auto& [name, size] : flags.sizes) sizes += (sizes.empty() ? "" : " ") + name + "=" + std::to_string(size);
  return {{"--model", flags.model},
          {"--size", sizes},
          {"--sequence", std::to_string(flags.sequence)},
          {"--steps", std::to_string(flags.steps)},
          {"--batch", std::to_string(flags.batch)},
          {"--accumulate", std::to_string(flags.accumulate)},
          {"--optimizer", flags.optimizer},
          {"--precision", flags.precision},
          {"--lr", rate.str()},
          {"--warmup, --decay and --decay-steps", flags.schedule.ToText()},
          {"--clip", std::to_string(flags.clip_norm)},
          {"--seed", std::to_string(flags.seed)},
          {"--device", flags.device},
          {"--checkpoint-dir", flags.checkpoint_dir},
          {"--every", std::to_string(flags.every)},
          {"--resume", flags.resume ? "given" : "not given"},
          {"--restore-from", flags.restore_from}};
}

std::optional<int> ParseFlags(int argc, char** argv, Flags& flags) {
  constexpr int kMisuse = 2;
  CLI::App app{
      "Trains a model with libtorch and checkpoints it with Cairn.\n"
      "Prints a line for each step, and \"durable step=N\" as soon as a checkpoint is durable (\"kept step=N\": in "
      "memory).\n"
      "A first SIGTERM or SIGINT ends it after a last checkpoint, a second one at once.\n"
      "Exit status: 0 trained, 1 training or a save failed, 2 invalid flags, 3 ended by a signal after a last "
      "checkpoint."};
  std::vector<std::string> sizes;
  std::string decay = "constant";
  app.add_option("--model", flags.model, "Model to train")->capture_default_str();
  app.add_option(
      "--size", sizes,
      "Override one of the published model's sizes: NAME=NUMBER (vgg16: width; others: hidden, layers, ...)");
  app.add_option("--init-from", flags.init_from,
                 "Start from the weights and the config.json sizes in this folder, in Hugging Face's layout");
  app.add_option("--data", flags.data,
                 "\"digits\", \"synthetic\" (noise in the model's shapes), or a folder made by scripts/prepare-data")
      ->capture_default_str();
  app.add_option("--sequence", flags.sequence, "Tokens in a sample of text")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--steps", flags.steps, "Total number of steps, including those before a resume")
      ->capture_default_str();
  app.add_option("--batch", flags.batch, "Samples in a batch")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--accumulate", flags.accumulate, "Batches accumulated into one step")
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
  app.add_option("--warmup", flags.schedule.warmup, "Steps of linear warm-up of the learning rate")
      ->capture_default_str();
  app.add_option("--decay", decay,
                 "Learning rate after the warm-up: constant, or linear or cosine to 0 at --decay-steps")
      ->check(CLI::IsMember({"constant", "linear", "cosine"}))
      ->capture_default_str();
  app.add_option("--decay-steps", flags.schedule.steps, "Step at which the learning rate reaches 0 [--steps]")
      ->check(CLI::PositiveNumber);
  app.add_option("--clip", flags.clip_norm, "Maximum norm of the gradients, 0 for no limit")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--seed", flags.seed, "Seed of weights, dropout and the order of the data")->capture_default_str();
  app.add_option("--device", flags.device, "Device to train on")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--threads", flags.threads,
                 "CPU threads; results are bit-exact only for the same number [torch's default]")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--backend", flags.backend,
                 "How several ranks (started by torchrun --no-python) communicate [gloo; with --device cuda nccl, "
                 "which has never run between two GPUs]")
      ->check(CLI::IsMember({"gloo", "nccl"}));
  app.add_option("--peer-timeout", flags.peer_timeout_seconds,
                 "Seconds after which a rank that does not answer ends the job")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_flag("--prove-backend", flags.prove_backend,
               "Only check that ranks' sums, broadcasts and messages arrive; also with one rank");
  app.add_option("--checkpoint-dir", flags.checkpoint_dir, "Save checkpoints here");
  app.add_option("--memory-root", flags.memory_root,
                 "Keep each save first in this folder on tmpfs, for example /dev/shm: the disk gets what it can take")
      ->needs("--checkpoint-dir");
  app.add_option("--disk-every", flags.disk_every,
                 "With --memory-root: the disk gets a save only if it is N steps above the last one that it got")
      ->needs("--memory-root");
  app.add_option("--every", flags.every, "Save after every N steps, and after the last")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--resume", flags.resume, "Resume from the newest checkpoint, or start anew if there is none")
      ->needs("--checkpoint-dir");
  app.add_option("--in-flight", flags.in_flight, "Maximum number of saves in flight")->capture_default_str();
  app.add_option("--host-memory", flags.host_memory_bytes, "Limit of the pinned pool, for example 512MiB")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  app.add_option("--keep", flags.keep, "Checkpoints to keep, 0 for all")->capture_default_str();
  app.add_option("--mirror", flags.mirror,
                 "Keep copies at this directory, s3://BUCKET/PREFIX, gs://, az:// or rclone:REMOTE:PATH")
      ->needs("--checkpoint-dir");
  app.add_option("--mirror-every", flags.mirror_every, "Of steps divisible by N only")
      ->check(CLI::PositiveNumber)
      ->needs("--mirror")
      ->capture_default_str();
  app.add_option("--mirror-keep", flags.mirror_keep, "Copies to keep there, 0 for all")
      ->needs("--mirror")
      ->capture_default_str();
  app.add_option("--restore-from", flags.restore_from,
                 "If there is no checkpoint to resume from, bring the newest one from this mirror")
      ->needs("--resume");
  app.add_option("--grace", flags.grace_seconds,
                 "Seconds after the first signal within which the last checkpoint must be durable")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--report", flags.report, "Write a report to this JSON file at the end");
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
