#include "tune/choose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "cairn/options.h"

namespace cairn {
namespace {

using namespace literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TuneInput SomeInput() {
  return {.goal = {.iteration_seconds = 0.2, .slowdown = 0.01, .mtbf_seconds = 7200, .restart_seconds = 30},
          .state_bytes = 4'000'000'000,
          .update_seconds = 0.02,
          .memory_bytes = 8_GiB,
          .free_bytes = 100'000'000'000};
}

Rates SomeRates() {
  return {.copy = 25e9,
          .shapes = {{4_MiB, 4, 2.3e9}, {4_MiB, 8, 2.5e9}, {4_MiB, 16, 2.55e9}},
          .slow_share = 0.9,
          .begin_seconds = 0.001,
          .commit_seconds = 0.01,
          .cpu_seconds_per_byte = 0.07e-9};
}

TuneChoice ChooseOrFail(const TuneInput& input, const Rates& rates) {
  const auto choice = Choose(input, rates);
  EXPECT_TRUE(choice.ok()) << choice.status();
  return choice.ok() ? *choice : TuneChoice();
}

TEST(Choose, WithoutStallTheDiskIsTheBound) {
  const TuneChoice choice = ChooseOrFail(SomeInput(), SomeRates());

  EXPECT_EQ(choice.interval.bound, Bound::kDisk);
  EXPECT_EQ(choice.cost.stall, 0);
  EXPECT_NEAR(choice.cost.write, 1.61, 0.02);
  EXPECT_EQ(choice.interval.iterations, 9U) << "1.61 s plus a tenth, in iterations of 0.2 s";
  EXPECT_EQ(choice.max_in_flight, 2);
  EXPECT_THAT(choice.why, HasSubstr("the disk"));
}

TEST(Choose, SaveThatFitsAnIterationIsMadeInEveryIteration) {
  TuneInput input = SomeInput();
  input.state_bytes = 100'000'000;

  const TuneChoice choice = ChooseOrFail(input, SomeRates());

  EXPECT_EQ(choice.interval.iterations, 1U);
  EXPECT_EQ(choice.interval.bound, Bound::kNothing);
  EXPECT_THAT(choice.why, HasSubstr("every iteration"));
}

TEST(Choose, EveryIterationIsSavedFromTheTimeThatTheDiskNeeds) {
  TuneInput input = SomeInput();
  const TuneChoice choice = ChooseOrFail(input, SomeRates());
  EXPECT_GT(choice.every_iteration_seconds, 4 / 2.5) << "bytes a save / disk rate";
  EXPECT_LT(choice.every_iteration_seconds, 1.2 * 4 / 2.5);
  EXPECT_NEAR(choice.bytes_per_day * choice.interval.period_seconds / 86400, 4e9, 1);

  input.goal.iteration_seconds = choice.every_iteration_seconds;
  EXPECT_EQ(ChooseOrFail(input, SomeRates()).interval.iterations, 1U);
  input.goal.iteration_seconds = 0.99 * choice.every_iteration_seconds;
  EXPECT_EQ(ChooseOrFail(input, SomeRates()).interval.iterations, 2U);
}

TEST(Choose, EveryIterationGoesByTheSlowestStage) {
  Rates rates = SomeRates();
  const IoShape shape{4_MiB, 8, 2.5e9};
  EXPECT_STREQ(FindSlowestStage(rates, shape.write_rate).name, "the disk");
  EXPECT_GT(EveryIterationSeconds(1'000'000'000, rates, shape), 1.1 * (1 / 2.5 + 0.01)) << "commit and reserve too";

  rates.checksum = 1e9;
  EXPECT_STREQ(FindSlowestStage(rates, shape.write_rate).name, "the checksums");
  EXPECT_GT(EveryIterationSeconds(1'000'000'000, rates, shape), 1.1);

  rates.copy = 1e8;
  EXPECT_STREQ(FindSlowestStage(rates, shape.write_rate).name, "the copy");
  EXPECT_GT(EveryIterationSeconds(1'000'000'000, rates, shape), 11);
}

TEST(Choose, PoolSmallerThanTheStateCostsWhatTheDiskTakesForTheRest) {
  TuneInput input = SomeInput();
  input.update_seconds = 0.19;
  input.memory_bytes = 1_GiB;

  const TuneChoice choice = ChooseOrFail(input, SomeRates());

  EXPECT_NEAR(choice.beyond_pool_seconds, (4e9 - static_cast<double>(choice.pool_bytes)) / choice.shape.write_rate,
              1e-6);
  EXPECT_NEAR(choice.cost.stall, choice.beyond_pool_seconds - 0.01, 0.01) << "less what forward and backward take";

  input.state_bytes = 16_MiB;
  EXPECT_EQ(ChooseOrFail(input, SomeRates()).beyond_pool_seconds, 0) << "the pool holds the state";
}

TEST(Choose, SecondSaveInFlightIsOnlyForSlowSaves) {
  TuneInput input = SomeInput();
  input.goal.iteration_seconds = 100;

  EXPECT_EQ(ChooseOrFail(input, SomeRates()).max_in_flight, 1);

  input.goal.iteration_seconds = 2;
  EXPECT_EQ(ChooseOrFail(input, SomeRates()).max_in_flight, 2);
  input.free_bytes = 4 * input.state_bytes;
  EXPECT_EQ(ChooseOrFail(input, SomeRates()).max_in_flight, 2);
  input.free_bytes = 4 * input.state_bytes - 1;
  EXPECT_EQ(ChooseOrFail(input, SomeRates()).max_in_flight, 1)
      << "no space for one kept, two in flight and one to overwrite";
}

TEST(Choose, SmallPoolBindsByMemoryWithAdvice) {
  TuneInput input = SomeInput();
  input.memory_bytes = 256_MiB;

  const TuneChoice choice = ChooseOrFail(input, SomeRates());

  EXPECT_EQ(choice.interval.bound, Bound::kMemory);
  EXPECT_LE(choice.pool_bytes, 256_MiB);
  EXPECT_GT(choice.interval.iterations, ChooseOrFail(SomeInput(), SomeRates()).interval.iterations);
  EXPECT_LE(choice.interval.slowdown, input.goal.slowdown);
  EXPECT_THAT(choice.why, AllOf(HasSubstr("memory"), HasSubstr("--memory above")));
}

TEST(Choose, LongCopiesBindBySlowdownOrFailures) {
  TuneInput input = SomeInput();
  Rates rates = SomeRates();
  rates.copy = 2e9;

  EXPECT_EQ(ChooseOrFail(input, rates).interval.bound, Bound::kSlowdown);

  input.goal.slowdown = 1;
  input.goal.mtbf_seconds = 36000;
  const TuneChoice choice = ChooseOrFail(input, rates);
  EXPECT_EQ(choice.interval.bound, Bound::kFailures);
  EXPECT_THAT(choice.why, HasSubstr("Young"));
}

TEST(Choose, CpuTrainingPaysForTheSavesThreads) {
  TuneInput input = SomeInput();
  input.training_cores = 2;
  input.goal.mtbf_seconds = 500;

  const TuneChoice choice = ChooseOrFail(input, SomeRates());

  EXPECT_NEAR(choice.cost.stall, 4e9 * 0.07e-9 / 2, 1e-9);
  EXPECT_EQ(choice.interval.bound, Bound::kSlowdown);
  EXPECT_EQ(choice.interval.iterations, 70U);
}

TEST(Choose, PoolIsTheSmallestWithoutMoreStall) {
  const TuneInput input = SomeInput();
  const TuneChoice choice = ChooseOrFail(input, SomeRates());
  Rates slow = SomeRates();
  for (IoShape& shape : slow.shapes) shape.write_rate *= slow.slow_share;

  const IoShape& shape = slow.shapes[1];
  EXPECT_EQ(choice.shape.queue_depth, 8);
  EXPECT_EQ(ModelCost(input, slow, shape, choice.pool_bytes).stall, 0) << "no stall even while the disk is slow";
  EXPECT_GT(ModelCost(input, slow, shape, choice.pool_bytes - 3 * shape.chunk_bytes).stall, 0);
}

TEST(Choose, SmallStateTakesTheMinimumPool) {
  TuneInput input = SomeInput();
  input.state_bytes = 1;

  const TuneChoice choice = ChooseOrFail(input, SomeRates());

  EXPECT_EQ(choice.pool_bytes, choice.shape.chunk_bytes * static_cast<std::uint64_t>(choice.shape.queue_depth));
}

TEST(Choose, ShapeIsTheSmallestFastOneThatFitsTheMemory) {
  TuneInput input = SomeInput();
  Rates rates = SomeRates();

  EXPECT_EQ(ChooseOrFail(input, rates).shape.queue_depth, 8) << "within a twentieth of the deeper one";
  rates.shapes[2].write_rate = 3e9;
  EXPECT_EQ(ChooseOrFail(input, rates).shape.queue_depth, 16);
  input.memory_bytes = 20_MiB;
  EXPECT_EQ(ChooseOrFail(input, rates).shape.queue_depth, 4);
}

TEST(Choose, SeparateChecksumsLimitTheWriteRate) {
  Rates rates = SomeRates();
  rates.checksum = 1e9;

  EXPECT_NEAR(ChooseOrFail(SomeInput(), rates).cost.write, 4.0, 0.05);
}

TEST(Choose, BetterResourcesNeverGiveAWorseChoice) {
  const TuneInput input = SomeInput();
  double goodput = 0;
  for (std::uint64_t memory = 64_MiB; memory <= 8_GiB; memory *= 2) {
    TuneInput more = input;
    more.memory_bytes = memory;
    const double found = ChooseOrFail(more, SomeRates()).interval.goodput;
    EXPECT_GE(found, goodput * (1 - 1e-9)) << memory;
    goodput = found;
  }
}

TEST(Choose, ExtremeInputsGiveFiniteChoices) {
  for (const double state : {1.0, 1e6, 1e12, 1e18}) {
    for (const double iteration : {1e-6, 1.0, 864000.0}) {
      for (const double slowdown : {1e-9, 1.0}) {
        for (const double mtbf : {1e-3, 1.7e9}) {
          for (const double rate : {1e3, 1e13}) {
            if (mtbf <= iteration) continue;
            TuneInput input = SomeInput();
            input.goal = {iteration, slowdown, mtbf, 1e9};
            input.state_bytes = static_cast<std::uint64_t>(state);
            input.update_seconds = 0;
            input.free_bytes = std::numeric_limits<std::uint64_t>::max();
            Rates rates = SomeRates();
            rates.copy = rate;
            for (IoShape& shape : rates.shapes) shape.write_rate = rate;
            SCOPED_TRACE(testing::Message()
                         << state << " " << iteration << " " << slowdown << " " << mtbf << " " << rate);

            const TuneChoice choice = ChooseOrFail(input, rates);

            EXPECT_GE(choice.interval.iterations, 1U);
            for (const double value : {choice.interval.slowdown, choice.interval.goodput, choice.interval.lost_seconds,
                                       choice.cost.write, choice.cost.stall, choice.captured_seconds}) {
              EXPECT_TRUE(std::isfinite(value)) << value;
              EXPECT_GE(value, 0);
            }
            EXPECT_LE(choice.interval.goodput, 1);
            EXPECT_LE(choice.pool_bytes, input.memory_bytes);
            EXPECT_EQ(choice.pool_bytes % choice.shape.chunk_bytes, 0U);
          }
        }
      }
    }
  }
}

TEST(Choose, InvalidInputsAreRefusedByFlagWithExpectedAndFound) {
  const auto message = [](const std::function<void(TuneInput&)>& change) {
    TuneInput input = SomeInput();
    change(input);
    const Status status = Choose(input, SomeRates()).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    return status.message();
  };
  for (const double bad : {0.0, -1.0, 2e6, kNan, kInfinity, -kInfinity}) {
    EXPECT_THAT(message([bad](TuneInput& in) { in.goal.iteration_seconds = bad; }),
                HasSubstr("--iteration-time: expected 1 us to 10 d, found "))
        << bad;
  }
  for (const double bad : {0.0, -0.1, 1.5, kNan, kInfinity}) {
    EXPECT_THAT(message([bad](TuneInput& in) { in.goal.slowdown = bad; }), HasSubstr("--slowdown: expected")) << bad;
  }
  for (const double bad : {0.0, -1.0, 0.2, kNan, kInfinity}) {
    EXPECT_THAT(message([bad](TuneInput& in) { in.goal.mtbf_seconds = bad; }), HasSubstr("--mtbf: expected")) << bad;
  }
  for (const double bad : {-1.0, kNan, kInfinity}) {
    EXPECT_THAT(message([bad](TuneInput& in) { in.goal.restart_seconds = bad; }), HasSubstr("--restart-time"));
    EXPECT_THAT(message([bad](TuneInput& in) { in.update_seconds = bad; }), HasSubstr("--update-time"));
    EXPECT_THAT(message([bad](TuneInput& in) { in.training_cores = bad; }), HasSubstr("--training-cores"));
  }
  EXPECT_THAT(message([](TuneInput& in) { in.update_seconds = 0.2; }), HasSubstr("--update-time: expected 0 to less"));
  EXPECT_THAT(message([](TuneInput& in) { in.state_bytes = 0; }),
              HasSubstr("--state-bytes: expected 1 B to 1000 PB, found 0 B"));
  EXPECT_THAT(message([](TuneInput& in) { in.memory_bytes = 4_MiB; }),
              HasSubstr("--memory: expected at least 16.0 MiB for the pool, found 4.0 MiB"));
  EXPECT_THAT(message([](TuneInput& in) { in.memory_bytes = 0; }), HasSubstr("--memory"));
}

TEST(Choose, StateThatFitsTheDiskOnlyOnceIsNoSpace) {
  TuneInput input = SomeInput();
  input.free_bytes = 3 * input.state_bytes / 2;

  const Status status = Choose(input, SomeRates()).status();

  EXPECT_EQ(status.code(), StatusCode::kNoSpace);
  EXPECT_THAT(status.message(), HasSubstr("--state-bytes: expected at most 3 GB, found 4 GB: 6 GB is free"));
}

TEST(Choose, UnmeasuredRatesAreRefused) {
  for (const std::function<void(Rates&)>& spoil : std::vector<std::function<void(Rates&)>>{
           [](Rates& rates) { rates.copy = 0; }, [](Rates& rates) { rates.shapes.clear(); },
           [](Rates& rates) { rates.shapes[0].write_rate = kNan; }, [](Rates& rates) { rates.slow_share = 0; },
           [](Rates& rates) { rates.commit_seconds = kNan; }}) {
    Rates rates = SomeRates();
    spoil(rates);
    EXPECT_EQ(Choose(SomeInput(), rates).status().code(), StatusCode::kInternal);
  }
}

}  // namespace
}  // namespace cairn
