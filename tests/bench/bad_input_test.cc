#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include "base/bytes.h"
#include "bench/harness/csv_row.h"
#include "bench/harness/flags.h"
#include "bench/harness/resources.h"
#include "support/run_program.h"
#include "testing/temp_dir.h"

namespace cairn::bench {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

Ran BenchTraining(const std::string& flags) { return RunShell(std::string(BENCH_TRAINING) + " " + flags); }

TEST(BenchTrainingTest, PrintsOneRowForARunWithARestore) {
  const TempDir directory;

  const Ran run = BenchTraining(
      "--device emulated --strategy sync --state-bytes 5000000 --tensors 5 --iteration-seconds 0.05 --every 2 "
      "--iterations 5 --dir " +
      directory.path() + " --csv " + directory / "runs.csv");

  EXPECT_EQ(run.code, 0);
  EXPECT_THAT(run.out, StartsWith("strategy,model,device,disk,state_bytes,"));
  EXPECT_THAT(run.out, HasSubstr("\nsync,custom,emulated,machine,5001216,5,0.05,2,0,5,0,"));
  EXPECT_THAT(run.out, HasSubstr(",4,0."));  // The restored step and the times of the saves.
  EXPECT_GT(std::filesystem::file_size(directory / "runs.csv"), 0U);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 1);  // No other file is left.
}

TEST(BenchTrainingTest, RefusesUnknownNames) {
  const TempDir directory;

  const Ran strategy = BenchTraining("--strategy tape --dir " + directory.path());
  const Ran folder = BenchTraining("--strategy sync --dir " + directory / "missing");
  const Ran flag = BenchTraining("--strategie sync --dir " + directory.path());

  EXPECT_EQ(strategy.code, 2);
  EXPECT_THAT(strategy.err, HasSubstr("unknown strategy \"tape\"; there are none, sync"));
  EXPECT_EQ(folder.code, 2);
  EXPECT_THAT(folder.err, HasSubstr("missing"));
  EXPECT_EQ(flag.code, 2);
}

TEST(BenchTrainingTest, NamesTheBuildThatHasLibtorch) {
  const TempDir directory;
  std::filesystem::copy_file(BENCH_TRAINING, directory / "bench_training");  // Without the torch build beside it.

  const Ran run = RunShell(directory / "bench_training --strategy gemini --dir " + directory.path());

  EXPECT_EQ(run.code, 77);
  EXPECT_THAT(run.err, HasSubstr("--strategy gemini needs libtorch"));
  EXPECT_THAT(run.err, HasSubstr("scripts/build release bench_training_torch"));
}

TEST(BenchTrainingTest, RefusesATableWithOtherColumns) {
  const TempDir directory;
  std::ofstream(directory / "runs.csv") << "year,rainfall\n";

  const Ran run =
      BenchTraining("--strategy none --state-bytes 5000000 --tensors 5 --iteration-seconds 0.05 --iterations 1 --dir " +
                    directory.path() + " --csv " + directory / "runs.csv");

  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.err, HasSubstr("found year,rainfall"));
}

TEST(BenchTrainingTest, NamesAScaleThatFitsBeforeRunning) {
  const TempDir directory;

  const Ran run = BenchTraining("--strategy pccheck --state-bytes 100000000000000 --dir " + directory.path());

  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.err, HasSubstr("would fit"));
}

TEST(BenchTrainingTest, NamesAScaleOfAModelThatFits) {
  const TempDir directory;

  const Ran run = BenchTraining("--strategy cairn --model gpt3-175b --iteration-seconds 9 --dir " + directory.path());

  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.err, HasSubstr("would fit"));
}

TEST(ResourcesTest, TheNamedScaleFits) {
  const Resources free{.disk_bytes = 1'000'000'000, .memory_bytes = 10'000'000'000};
  const std::uint64_t state = 1'000'001'536;

  const Status status = CheckFits({.disk_bytes = 2 * state, .memory_bytes = 2 * state}, free, state, 0.5);

  EXPECT_EQ(status.code(), StatusCode::kNoSpace);
  EXPECT_THAT(status.message(), HasSubstr("--scale 0.235 would fit"));
  const auto fitting = static_cast<std::uint64_t>(static_cast<double>(state) * 0.235 / 0.5);
  EXPECT_EQ(CheckFits({.disk_bytes = 2 * fitting, .memory_bytes = 2 * fitting}, free, fitting, 0.235), Status::Ok());
  EXPECT_EQ(CheckFits({.disk_bytes = 0, .memory_bytes = 11'000'000'000}, free, state, 1).code(),
            StatusCode::kResourceExhausted);
}

TEST(FlagsTest, ScaleKeepsTheRatios) {
  Flags flags;
  flags.strategy = "cairn";
  flags.state_bytes = 8U << 20;
  flags.iteration_seconds = 0.5;
  flags.scale = 0.25;

  const Result<Flags> resolved = Resolve(flags);

  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->state_bytes, 2U << 20);
  EXPECT_EQ(resolved->host_memory_bytes, 4U << 20);
  EXPECT_EQ(resolved->iteration_seconds, 0.125);
}

TEST(FlagsTest, AModelSetsTheShape) {
  Flags flags;
  flags.strategy = "cairn";
  flags.model = "opt-1.3b";
  flags.scale = 0.125;

  const Result<Flags> resolved = Resolve(flags);

  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->state_bytes, 2'025'000'960U);
  EXPECT_EQ(resolved->iteration_seconds, 0.85 / 8);
}

TEST(FlagsTest, AModelKnownByNameHasItsTensors) {
  Flags flags;
  flags.strategy = "cairn";
  flags.model = "bloom-7b1";
  flags.iteration_seconds = 2;

  const Result<Flags> resolved = Resolve(flags);

  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->state_bytes, 7'069'016'064ULL * 12);
  EXPECT_EQ(BytesOf(resolved->state), resolved->state_bytes);
  EXPECT_EQ(resolved->tensors, resolved->state.size());
  EXPECT_EQ(resolved->state.front().name, "transformer.word_embeddings.weight");
  EXPECT_EQ(resolved->state.front().bytes, 250'880ULL * 4096 * 4);
  EXPECT_EQ(resolved->pace, "as given");
}

TEST(FlagsTest, AScaleKeepsTheModelsTensors) {
  Flags flags;
  flags.strategy = "cairn";
  flags.model = "vgg16";
  flags.scale = 0.001;

  const Result<Flags> resolved = Resolve(flags);

  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->state.size(), 64U);
  EXPECT_EQ(resolved->state_bytes, AlignUp(1'100'000, kBlock));
  EXPECT_THAT(resolved->pace, HasSubstr("fig8_vgg16.csv"));
}

TEST(FlagsTest, DilationStretchesTimeAndKeepsTheRatios) {
  Flags flags;
  flags.strategy = "cairn";
  flags.model = "opt-1.3b";
  flags.dilation = 4;
  flags.disk_bytes_per_second = 6'000'000'000;

  const Result<Flags> resolved = Resolve(flags);

  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->state_bytes, 16'200'003'584U);
  EXPECT_EQ(resolved->iteration_seconds, 0.85 * 4);
  EXPECT_EQ(resolved->pcie_bytes_per_second, 25e9 / 4);
  EXPECT_EQ(resolved->disk_bytes_per_second, 1'500'000'000U);
  EXPECT_EQ(resolved->network_bytes_per_second, 1'875'000'000U / 4);
}

TEST(FlagsTest, InvalidValuesAreNamed) {
  const auto refused = [](const std::function<void(Flags&)>& change) {
    Flags flags;
    flags.strategy = "sync";
    change(flags);
    return Resolve(flags).status().message();
  };

  EXPECT_THAT(refused([](Flags& f) { f.state_bytes = 0; }), HasSubstr("--state-bytes"));
  EXPECT_THAT(refused([](Flags& f) { f.tensors = 0; }), HasSubstr("--tensors"));
  EXPECT_THAT(refused([](Flags& f) { f.iteration_seconds = -1; }), HasSubstr("--iteration-seconds"));
  EXPECT_THAT(refused([](Flags& f) { f.iterations = 0; }), HasSubstr("--iterations"));
  EXPECT_THAT(refused([](Flags& f) { f.every = 0; }), HasSubstr("--every"));
  EXPECT_THAT(refused([](Flags& f) { f.every = 41; }), HasSubstr("--every"));
  EXPECT_THAT(refused([](Flags& f) { f.again = 4; }), HasSubstr("--again"));
  EXPECT_THAT(refused([](Flags& f) { f.warmup = 40; }), HasSubstr("--warmup"));
  EXPECT_THAT(refused([](Flags& f) { f.chunk_bytes = 5000; }), HasSubstr("--chunk-bytes"));
  EXPECT_THAT(refused([](Flags& f) { f.writers = 0; }), HasSubstr("--writers"));
  EXPECT_THAT(refused([](Flags& f) { f.in_flight = 0; }), HasSubstr("--in-flight"));
  EXPECT_THAT(refused([](Flags& f) { f.scale = 0; }), HasSubstr("--scale"));
  EXPECT_THAT(refused([](Flags& f) { f.dilation = 0; }), HasSubstr("--dilation"));
  EXPECT_THAT(refused([](Flags& f) { f.scale = 1e30; }), HasSubstr("--state-bytes"));
  EXPECT_THAT(refused([](Flags& f) { f.model = "gpt"; }), HasSubstr("unknown model \"gpt\"; there are vgg16, "));
  EXPECT_THAT(refused([](Flags& f) { f.model = "gpt3-xl"; }),
              HasSubstr("--model gpt3-xl: expected --iteration-seconds, because nobody has published its pace"));
  EXPECT_THAT(refused([](Flags& f) { f.device = "tpu"; }), HasSubstr("--device: expected auto, cuda or emulated"));
  EXPECT_THAT(refused([](Flags& f) { f.disk = "floppy"; }), HasSubstr("--disk: expected machine or pd-ssd"));
  EXPECT_THAT(refused([](Flags& f) { f.compute = "abacus"; }),
              HasSubstr("--compute: expected paced, products or trainer"));
  EXPECT_THAT(refused([](Flags& f) { f.compute = "trainer"; }), HasSubstr("expected --model"));
  const auto trainer = [](Flags& f) {
    f.compute = "trainer";
    f.model = "opt-125m";
  };
  EXPECT_THAT(refused([&](Flags& f) {
                trainer(f);
                f.resume = true;
              }),
              HasSubstr("none of --resume, --check, --scale and --dilation"));
  EXPECT_THAT(refused([&](Flags& f) {
                trainer(f);
                f.every = 3;
              }),
              HasSubstr("a multiple of --every"));
  EXPECT_THAT(refused([&](Flags& f) {
                trainer(f);
                f.batch = 0;
              }),
              HasSubstr("--batch"));
  EXPECT_THAT(refused([](Flags& f) { f.network = "avian"; }), HasSubstr("--network: expected namespaces or loopback"));
  EXPECT_THAT(refused([](Flags& f) { f.network_bytes_per_second = 0; }), HasSubstr("--network-bytes-per-second"));
  EXPECT_THAT(refused([](Flags& f) { f.update_seconds = 1; }), HasSubstr("--update-seconds"));
  EXPECT_THAT(refused([](Flags& f) { f.pcie_bytes_per_second = -1; }), HasSubstr("--pcie-bytes-per-second"));
}

TEST(CsvRowTest, CellsWithCommasAreQuoted) {
  CsvRow row;
  row.Add("a", 1);
  row.Add("b", "x, \"y\"");

  EXPECT_EQ(row.names(), "a,b");
  EXPECT_EQ(row.values(), "1,\"x, \"\"y\"\"\"");
}

}  // namespace
}  // namespace cairn::bench
