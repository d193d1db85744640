#include "advice/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace cairn {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::uint64_t kGiB = 1U << 30;

using Job = std::function<double(const Budget&)>;

/// Profiles the job to the end.
Profile Measure(const Job& job, Budget full, const ProfileLimits& limits, std::uint64_t peak = 0) {
  Profile profile{.full = full, .peak_bytes = peak};
  while (const auto next = NextBudget(profile, limits)) {
    for (const ProfileSample& sample : profile.samples) EXPECT_FALSE(sample.budget == *next && sample.again);
    AddSample(profile, {.budget = *next, .throughput = job(*next)});
    if (profile.samples.size() > 100) break;
  }
  return profile;
}

std::vector<double> Cores(const Profile& profile) {
  std::vector<double> cores;
  for (const ProfileSample& sample : profile.samples) cores.push_back(sample.budget.cores);
  return cores;
}

double Loader(const Budget& budget) { return 10 * budget.cores; }
double Compute(const Budget&) { return 50; }

TEST(Profile, HalvesTheCoresOfALoaderUntilItHasLostHalfOfItsSpeed) {
  const Profile profile = Measure(Loader, {.cores = 16}, {});

  EXPECT_EQ(Cores(profile), (std::vector<double>{16, 8}));
  EXPECT_NEAR(FindKnee(profile).cores, 14.4, 1e-9);
  EXPECT_NEAR(PredictThroughput(profile, {.cores = 3}), 30, 1e-9);
}

TEST(Profile, HalvesTheCoresOfAFlatJobToTheLeastAndMeasuresNothingBetween) {
  const Profile profile = Measure(Compute, {.cores = 16}, {.least_cores = 0.5, .fractions = true});

  EXPECT_EQ(Cores(profile), (std::vector<double>{16, 8, 4, 2, 1, 0.5}));
  EXPECT_EQ(FindKnee(profile).cores, 0.5);
}

TEST(Profile, TakesWholeCoresOnlyWithoutAQuota) {
  const Profile profile = Measure(Compute, {.cores = 5}, {.least_cores = 0.5});

  EXPECT_EQ(Cores(profile), (std::vector<double>{5, 2, 1}));
}

// Wherever the knee is, and whatever the noise of 2 %.
TEST(Profile, PredictsWithinTenPerCentWhatItDidNotMeasure) {
  for (const double knee : {1.2, 1.5, 2.7, 5.0, 9.3, 12.0, 15.5}) {
    const auto truth = [knee](double cores) { return 10 * std::min(cores, knee); };
    int call = 0;
    const auto noisy = [&](const Budget& budget) { return truth(budget.cores) * (1 + 0.02 * std::sin(++call * 2.4)); };

    const Profile profile = Measure(noisy, {.cores = 16}, {.least_cores = 0.25, .fractions = true});

    EXPECT_LE(profile.samples.size(), 9U) << knee;
    for (double cores = 0.25; cores <= 16; cores += 0.25) {
      EXPECT_NEAR(PredictThroughput(profile, {.cores = cores}), truth(cores), 0.125 * truth(cores))
          << cores << " cores, knee at " << knee;
    }
  }
}

TEST(Profile, NeverPredictsLessForMore) {
  Profile profile{.full = {.cores = 4}};
  profile.samples = {{{4}, 19}, {{2}, 21}, {{1}, 20}, {{0.5}, 8}};

  EXPECT_EQ(PredictThroughput(profile, {.cores = 1}), 20);
  EXPECT_EQ(PredictThroughput(profile, {.cores = 3}), 20);
  EXPECT_EQ(PredictThroughput(profile, {.cores = 8}), 20);
}

// Reads at random from 3 GiB of files: what is not in the cache costs a read.
double Reader(const Budget& budget) {
  const double cached = std::min(1.0, static_cast<double>(budget.memory_bytes) / (3.0 * kGiB));
  return 1 / (0.1 + 0.4 * (1 - cached));
}

TEST(Profile, HalvesMemoryFromWhatTheJobUsed) {
  const Profile profile = Measure(Reader, {.cores = 1, .memory_bytes = 64 * kGiB}, {}, 3 * kGiB);

  ASSERT_GE(profile.samples.size(), 2U);
  EXPECT_EQ(profile.samples[1].budget.memory_bytes, 3 * kGiB / 2);
  EXPECT_LE(profile.samples.size(), 4U);
  for (std::uint64_t memory = kGiB * 3 / 2; memory <= 8 * kGiB; memory += kGiB / 8) {
    const Budget budget{.cores = 1, .memory_bytes = memory};
    EXPECT_NEAR(PredictThroughput(profile, budget), Reader(budget), 0.1 * Reader(budget)) << memory;
  }
}

TEST(Profile, FindsWhereTheJobStopsRunning) {
  const auto killed = [](const Budget& budget) { return budget.memory_bytes >= 5 * kGiB ? 10.0 : 0.0; };

  const Profile profile = Measure(killed, {.cores = 1, .memory_bytes = 16 * kGiB}, {}, 8 * kGiB);

  EXPECT_NEAR(static_cast<double>(FindKnee(profile).memory_bytes), 5.0 * kGiB, 0.51 * kGiB);
  EXPECT_GE(FindKnee(profile).memory_bytes, 5 * kGiB);
  EXPECT_EQ(PredictThroughput(profile, {.cores = 1, .memory_bytes = 2 * kGiB}), 0);
}

TEST(Profile, TheScarcerResourceDecides) {
  const auto both = [](const Budget& budget) { return std::min(Loader(budget), 10 * Reader(budget)); };
  const Profile profile = Measure(both, {.cores = 16, .memory_bytes = 8 * kGiB}, {}, 3 * kGiB);

  EXPECT_NEAR(PredictThroughput(profile, {.cores = 4, .memory_bytes = 8 * kGiB}), 40, 4);
  EXPECT_NEAR(PredictThroughput(profile, {.cores = 16, .memory_bytes = 2 * kGiB}), 42.9, 4.3);
  EXPECT_NEAR(PredictThroughput(profile, {.cores = 2, .memory_bytes = 2 * kGiB}), 20, 2);
}

TEST(Profile, MeasuresOnceMoreWhereLessGaveMore) {
  std::vector<double> measured;
  const auto disturbed = [&measured](const Budget& budget) {
    measured.push_back(budget.cores);
    return measured.size() == 1 ? 30.0 : 50.0;
  };

  const Profile profile = Measure(disturbed, {.cores = 4}, {});

  EXPECT_EQ(measured, (std::vector<double>{4, 2, 4, 1}));
  EXPECT_EQ(profile.samples[0].throughput, 50);
  EXPECT_EQ(FindKnee(profile).cores, 1);
}

TEST(Profile, MeasuresNoMoreThanItMay) {
  const Profile profile = Measure(Compute, {.cores = 64}, {.most_samples = 3});

  EXPECT_THAT(profile.samples, SizeIs(3));
}

TEST(ProfileAdvice, LeavesALoaderItsCores) {
  const ProfileAdvice advice = Advise(Measure(Loader, {.cores = 16}, {}));

  EXPECT_EQ(advice.worker_threads, 1);
  EXPECT_NEAR(advice.training_cores, 16, 1e-9);  // A core that saves take is a sixteenth of the job.
  EXPECT_EQ(advice.host_memory_bytes, std::nullopt);
  EXPECT_THAT(advice.why, testing::Contains(HasSubstr("memory was not profiled")));
  EXPECT_THAT(advice.why, testing::Contains(HasSubstr("checksums run on the host")));
}

TEST(ProfileAdvice, GivesSavesWhatAComputeBoundJobDoesNotNeed) {
  const Profile profile = Measure(Compute, {.cores = 16, .memory_bytes = 64 * kGiB}, {}, 2 * kGiB);
  const ProfileAdvice advice = Advise(profile);

  EXPECT_EQ(advice.spare_cores, 15);
  EXPECT_EQ(advice.worker_threads, 4);
  EXPECT_EQ(advice.training_cores, 0);
  EXPECT_GE(advice.host_memory_bytes, 62 * kGiB);
}

TEST(ProfileAdvice, TakesNoneFromAResourceOfWhichLessGaveMore) {
  const auto fewer = [](const Budget& budget) { return budget.cores > 4 ? 30.0 : 50.0; };
  const auto less = [](const Budget& budget) { return budget.memory_bytes > 8 * kGiB ? 30.0 : 50.0; };

  const ProfileAdvice of_cores = Advise(Measure(fewer, {.cores = 16}, {}));
  const ProfileAdvice of_memory = Advise(Measure(less, {.cores = 16, .memory_bytes = 64 * kGiB}, {}, 32 * kGiB));

  EXPECT_EQ(of_cores.spare_cores, 0);
  EXPECT_EQ(of_cores.worker_threads, 1);
  EXPECT_EQ(of_cores.training_cores, 16);
  EXPECT_THAT(of_cores.why, testing::Contains(HasSubstr("with 4 cores it was faster (50 iterations/s) than with 16")));
  EXPECT_EQ(of_memory.host_memory_bytes, std::nullopt);
  EXPECT_EQ(of_memory.worker_threads, 4);
  EXPECT_THAT(of_memory.why, testing::Contains(HasSubstr("host_memory stays \"auto\"")));
}

TEST(ProfileAdvice, HalfOfASingleCoreMayBeSpare) {
  const ProfileLimits quarters{.least_cores = 0.25, .fractions = true};

  EXPECT_EQ(Advise(Measure(Compute, {.cores = 1}, quarters)).training_cores, 0);
  EXPECT_NEAR(Advise(Measure(Loader, {.cores = 1}, quarters)).training_cores, 1, 1e-9);
}

TEST(ProfileCheck, NamesTheFieldThatIsWrong) {
  const Profile good = Measure(Loader, {.cores = 4}, {});
  ASSERT_TRUE(CheckProfile(good).ok()) << CheckProfile(good);
  const auto refused = [&good](const std::function<void(Profile&)>& change) {
    Profile profile = good;
    change(profile);
    return CheckProfile(profile).message();
  };

  EXPECT_THAT(refused([](Profile& p) { p.full.cores = 0; }), HasSubstr("full.cores: expected a number above 0"));
  EXPECT_THAT(refused([](Profile& p) { p.tolerance = 1; }), HasSubstr("tolerance: expected a share"));
  EXPECT_THAT(refused([](Profile& p) { p.samples.clear(); }), HasSubstr("samples: expected at least"));
  EXPECT_THAT(refused([](Profile& p) { p.samples[0].throughput = 0; }), HasSubstr("samples[0].throughput: expected"));
  EXPECT_THAT(refused([](Profile& p) { p.samples[1].throughput = NAN; }), HasSubstr("samples[1].throughput: expected"));
  EXPECT_THAT(refused([](Profile& p) { p.samples[1].budget.cores = -1; }), HasSubstr("samples[1].cores: expected"));
  EXPECT_THAT(refused([](Profile& p) { p.samples[0].budget.cores = 3; }), HasSubstr("samples[0]: expected the whole"));
  EXPECT_THAT(refused([](Profile& p) { p.samples.push_back(p.samples[1]); }),
              HasSubstr("samples[2]: expected another budget than samples[1]"));
}

}  // namespace
}  // namespace cairn
