// GPU tensors in the root in memory, on the CUDA driver's double: the device's copies land in the mapped slots, which
// are pinned, and a slot never changes while it is.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cairn/cairn.h"
#include "checkpointer/cuda_model.h"
#include "checkpointer/memory_root_fixture.h"
#include "device/cuda_under_test.h"
#include "device/fake_cuda.h"
#include "support/all_ranks.h"
#include "support/forked.h"
#include "support/small_run.h"
#include "testing/local_group.h"

namespace cairn {
namespace {

using namespace literals;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// With max_in_flight 3.
constexpr int kSlots = 5;

/// A Checkpointer with a memory root, and a model on the double's GPUs.
class CudaMemoryRoot : public MemoryRootTest {
 protected:
  void SetUp() override { fake_cuda::Reset(); }
  void TearDown() override {
    EXPECT_THAT(fake_cuda::Misuses(), IsEmpty());
    checkpointer_.reset();
    model_.reset();
    EXPECT_EQ(fake_cuda::LiveObjects(), 0) << fake_cuda::DescribeLiveObjects();
    fake_cuda::Reset();
  }

  void Open(int gpus = 1, bool kernels = false) { Open(WithGpus(gpus), gpus, kernels); }
  void Open(Options options, int gpus, bool kernels) {
    if (kernels) fake_cuda::DefineCairnsKernels();
    model_ = std::make_unique<CudaModel>(gpus, kernels);
    options.on_event = messages_.callback();
    checkpointer_ = OpenOrFail(options, Through(plan_));
    ASSERT_NE(checkpointer_, nullptr);
  }
  [[nodiscard]] Options WithGpus(int gpus) {
    Options options = WithMemory();
    for (int gpu = 0; gpu < gpus; ++gpu) options.cuda_devices.push_back(gpu);
    return options;
  }
  /// Training writes the step, saves it, and writes the next one once the fence lets it.
  Result<SaveHandle> Step(std::uint32_t step) {
    model_->Write(step);
    Result<SaveHandle> save = checkpointer_->Save(step, model_->state(), {.streams = model_->streams()});
    EXPECT_TRUE(save.ok()) << save.status();
    for (const Stream stream : model_->streams()) EXPECT_TRUE(checkpointer_->Fence(stream, Soon()).ok());
    model_->Write(99);
    return save;
  }
  Status Keep(std::uint32_t step) {
    const Result<SaveHandle> save = Step(step);
    return save.ok() ? save->WaitKept(Soon()) : save.status();
  }
  static void Expect(Checkpointer& checkpointer, CudaModel& model, std::uint32_t step) {
    const auto restored = checkpointer.Restore(Latest(), model.state(), {.resume = false, .streams = model.streams()});
    ASSERT_TRUE(restored.ok()) << restored.status();
    EXPECT_EQ(restored->step, step);
    model.Expect(step);
  }
  void Expect(std::uint32_t step) { Expect(*checkpointer_, *model_, step); }
  /// The mappings of this process in the folder in memory.
  [[nodiscard]] int Mappings() const {
    int found = 0;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) found += line.find(memory_.path()) == std::string::npos ? 0 : 1;
    return found;
  }

  const std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
  Messages messages_;
  std::unique_ptr<CudaModel> model_;
  std::unique_ptr<Checkpointer> checkpointer_;
};

TEST_F(CudaMemoryRoot, WhatIsKeptSurvivesTheProcessBitByBit) {
  Forked child([&](const Say& say) {
    // The disk gets nothing.
    const FaultGate gate = plan_->Hold({.op = IoOp::kMkdir, .path = root_ + "/.attempt"});
    Open();
    for (std::uint32_t step = 1; step <= 3; ++step) {
      if (!Keep(step).ok()) return 2;
    }
    say("kept");
    ::kill(::getpid(), SIGKILL);
    return 3;
  });
  ASSERT_EQ(child.Wait(Soon()).how, Forked::How::kKilled);

  Open();
  Expect(3);
  ASSERT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
  ASSERT_EQ(Keep(4), Status::Ok());
  ASSERT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
  checkpointer_.reset();

  const auto reader = OpenOrFail({.root = root_, .read_only = true});
  ASSERT_NE(reader, nullptr);
  Expect(*reader, *model_, 4);
  const auto third = reader->Restore(cairn::Step(3), model_->state(), {.streams = model_->streams()});
  ASSERT_TRUE(third.ok()) << third.status();
  model_->Expect(3);
}

// Nothing is cut, extended or made anew after the first save: the GPU writes into the pages that are pinned.
TEST_F(CudaMemoryRoot, SlotsArePinnedOnceAndNeverChange) {
  Open();
  model_->Write(1);
  const auto save = [&](std::uint64_t step) {
    const Result<SaveHandle> saved = checkpointer_->Save(step, model_->state(), {.streams = model_->streams()});
    return saved.ok() ? saved->WaitKept(Soon()) : saved.status();
  };
  const auto changes = [&] {
    return plan_->Count({.op = IoOp::kFtruncate, .path = memory_.path()}) +
           plan_->Count({.op = IoOp::kFallocate, .path = memory_.path()});
  };
  const int before = fake_cuda::Calls("cuMemHostRegister");
  ASSERT_EQ(save(1), Status::Ok());
  EXPECT_EQ(fake_cuda::Calls("cuMemHostRegister") - before, kSlots);
  ASSERT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
  const int objects = fake_cuda::LiveObjects();
  const auto shards = ShardsIn(Folder());
  EXPECT_EQ(Mappings(), kSlots);
  EXPECT_EQ(shards.first, static_cast<std::size_t>(kSlots));

  for (std::uint64_t step = 2; step <= 200; ++step) ASSERT_EQ(save(step), Status::Ok()) << step;
  ASSERT_EQ(checkpointer_->Drain(Soon()), Status::Ok());

  EXPECT_EQ(fake_cuda::Calls("cuMemHostRegister") - before, kSlots);
  EXPECT_EQ(fake_cuda::LiveObjects(), objects);
  EXPECT_EQ(Mappings(), kSlots);
  EXPECT_EQ(ShardsIn(Folder()), shards);
  EXPECT_EQ(changes(), 0U);
  model_->Write(99);
  const auto restored = checkpointer_->Restore(Latest(), model_->state(), {.streams = model_->streams()});
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->step, 200U);
  model_->Expect(1);
}

// A slot's pages stay what they are: another length is another file, and the old one is unpinned first.
TEST_F(CudaMemoryRoot, AStateOfAnotherLengthGetsOtherSlots) {
  Open(2);
  const State& small = model_->state_of(0);
  const State& large = model_->state();
  std::uint64_t step = 0;
  for (const State* const state : {&small, &large, &small}) {
    const bool whole = state == &large;
    const std::vector<Stream> streams = whole ? model_->streams() : std::vector<Stream>{model_->streams()[0]};
    for (int round = 0; round < 3; ++round) {
      model_->Write(static_cast<std::uint32_t>(++step));
      const int before = fake_cuda::LiveObjects();
      const auto save = checkpointer_->Save(step, *state, {.streams = streams});
      ASSERT_TRUE(save.ok()) << save.status();
      ASSERT_EQ(save->WaitKept(Soon()), Status::Ok());
      ASSERT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
      const int more = fake_cuda::LiveObjects() - before;
      EXPECT_EQ(more, step == 1 ? kSlots : 0) << step;
    }
    EXPECT_EQ(ShardsIn(Folder()).first, static_cast<std::size_t>(kSlots)) << step;
    EXPECT_EQ(Mappings(), kSlots) << step;
    model_->Write(99);
    const auto restored = checkpointer_->Restore(Latest(), *state, {.resume = false, .streams = streams});
    ASSERT_TRUE(restored.ok()) << restored.status();
    EXPECT_EQ(restored->step, step);
    model_->Expect(static_cast<std::uint32_t>(step), whole ? std::optional<std::size_t>() : 0);
  }
  EXPECT_THAT(messages_.Seen(), Not(Contains(HasSubstr("no memory root"))));
}

// At the first slot, and in the midst of them.
TEST_F(CudaMemoryRoot, WithoutPinnedSlotsSavesGoToTheDisk) {
  for (const int after : {0, 2}) {
    SCOPED_TRACE(after);
    Open();
    model_->Write(1);
    const int before = fake_cuda::LiveObjects();
    fake_cuda::Fail("cuMemHostRegister", CUDA_ERROR_OUT_OF_MEMORY, after);

    const auto save = checkpointer_->Save(1, model_->state(), {.streams = model_->streams()});
    ASSERT_TRUE(save.ok()) << save.status();
    EXPECT_EQ(save->WaitDurable(Soon()), Status::Ok());

    EXPECT_EQ(save->stats().kept.count(), 0);
    EXPECT_THAT(messages_.Seen(), Contains(AllOf(HasSubstr("there is no memory root from here on"),
                                                 HasSubstr("could not be pinned for cuda:0"))));
    EXPECT_EQ(fake_cuda::LiveObjects(), before) << fake_cuda::DescribeLiveObjects();
    EXPECT_EQ(ShardsIn(Folder()).first, 0U);
    EXPECT_EQ(Mappings(), 0);
    model_->Write(2);
    const auto next = checkpointer_->Save(2, model_->state(), {.streams = model_->streams()});
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ(next->WaitDurable(Soon()), Status::Ok());
    Expect(2);
    ASSERT_EQ(checkpointer_->Remove(1), Status::Ok());
    ASSERT_EQ(checkpointer_->Remove(2), Status::Ok());
    checkpointer_.reset();
    model_.reset();
    fake_cuda::Reset();
  }
}

// What it wrote until then is no checkpoint. Its slot is the next save's.
TEST_F(CudaMemoryRoot, ACopyThatFailsLosesNothingThatIsKept) {
  const FaultGate gate = plan_->Hold({.op = IoOp::kMkdir, .path = root_ + "/.attempt"});
  Open();
  ASSERT_EQ(Keep(1), Status::Ok());
  model_->Write(2);
  const int objects = fake_cuda::LiveObjects();
  const int calls = fake_cuda::Calls("cuMemHostRegister");
  fake_cuda::Fail("cuMemcpyBatchAsync", CUDA_ERROR_INVALID_VALUE, 1);

  const auto failed = checkpointer_->Save(2, model_->state(), {.streams = model_->streams()});
  ASSERT_TRUE(failed.ok()) << failed.status();
  EXPECT_EQ(failed->WaitKept(Soon()).code(), StatusCode::kDeviceError);

  EXPECT_EQ(checkpointer_->stats().memory_root, Folder());
  Expect(1);
  const auto save = checkpointer_->Save(3, model_->state(), {.streams = model_->streams()});
  ASSERT_TRUE(save.ok()) << save.status();
  EXPECT_EQ(save->WaitKept(Soon()), Status::Ok());
  EXPECT_EQ(fake_cuda::LiveObjects(), objects);
  EXPECT_EQ(fake_cuda::Calls("cuMemHostRegister"), calls);
  EXPECT_EQ(ShardsIn(Folder()).first, static_cast<std::size_t>(kSlots));
  gate.Release();
  EXPECT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
  EXPECT_EQ(ListedSteps(*checkpointer_), (std::vector<std::uint64_t>{1, 3}));
}

// The disk still gets what is kept: it is in the host's memory.
TEST_F(CudaMemoryRoot, ALostGpuLosesNothingThatIsKept) {
  const FaultGate gate = plan_->Hold({.op = IoOp::kMkdir, .path = root_ + "/.attempt"});
  Open();
  model_->Write(1);
  const auto kept = checkpointer_->Save(1, model_->state(), {.streams = model_->streams()});
  ASSERT_TRUE(kept.ok()) << kept.status();
  ASSERT_EQ(kept->WaitKept(Soon()), Status::Ok());
  fake_cuda::HoldWork();
  const auto lost = checkpointer_->Save(2, model_->state(), {.streams = model_->streams()});
  ASSERT_TRUE(lost.ok()) << lost.status();

  fake_cuda::SetSticky(CUDA_ERROR_ILLEGAL_ADDRESS);
  fake_cuda::ReleaseWork();

  EXPECT_EQ(lost->WaitKept(Soon()).code(), StatusCode::kDeviceError);
  gate.Release();
  EXPECT_EQ(kept->WaitDurable(Soon()), Status::Ok());
  checkpointer_.reset();
  model_.reset();
  fake_cuda::Reset();
  Open();
  Expect(1);
}

// Streams run in many of the legal orders, with kernels and without, with the GPU's sums and the host's.
TEST_F(CudaMemoryRoot, SavesMixNoStepsInAnyOrderOfTheStreams) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    fake_cuda::SetSchedule(seed);
    const int gpus = 1 + static_cast<int>(seed % 2);
    Options options = WithGpus(gpus);
    options.gpu_checksums = seed > 2;
    Open(options, gpus, /*kernels=*/seed % 3 != 0);
    const auto first = static_cast<std::uint32_t>(10 * seed);
    for (std::uint32_t step = first; step < first + 3; ++step) ASSERT_TRUE(Step(step).ok());
    ASSERT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
    Expect(first + 2);
    EXPECT_THAT(fake_cuda::Misuses(), IsEmpty());
    checkpointer_.reset();
    model_.reset();
    fake_cuda::Reset();
  }
}

// As after copy_(gpu, non_blocking=True).
TEST_F(CudaMemoryRoot, PinnedCpuTensorsAreReadOnceTheStreamsHaveComeToTheCall) {
  Open();
  std::string why_not;
  const auto gpu = CudaUnderTest::Make(why_not);
  ASSERT_NE(gpu, nullptr) << why_not;
  const MutableBytes pinned = gpu->MakeHostMemory(300'000);
  State state;
  ASSERT_EQ(state.Add("pinned", {.data = pinned.data(), .dtype = DType::kU8, .shape = {300'000}}), Status::Ok());
  const Stream stream = gpu->MakeStream();
  std::promise<void> copies_may_end;
  gpu->LaunchOnHost(stream, [&] {
    copies_may_end.get_future().wait();
    std::fill(pinned.begin(), pinned.end(), std::byte{7});
  });

  const auto save = checkpointer_->Save(1, state, {.streams = {stream}});
  ASSERT_TRUE(save.ok()) << save.status();
  copies_may_end.set_value();
  EXPECT_EQ(save->WaitKept(Soon()), Status::Ok());

  std::fill(pinned.begin(), pinned.end(), std::byte{0});
  ASSERT_EQ(checkpointer_->Restore(Latest(), state).status(), Status::Ok());
  EXPECT_THAT(pinned, testing::Each(std::byte{7}));
}

// Each has slots of its own, and the disk gets the parts of both.
TEST_F(CudaMemoryRoot, RanksOfANodeKeepTheirGpusPartsTogether) {
  model_ = std::make_unique<CudaModel>(2, /*kernels=*/false);
  Options options = WithGpus(2);
  options.on_event = messages_.callback();
  const auto groups = MakeLocalGroup(2);
  std::vector<std::unique_ptr<Checkpointer>> ranks(2);
  OnAllRanks(2, [&](int rank) {
    Options own = options;
    own.group = groups[static_cast<std::size_t>(rank)];
    ranks[static_cast<std::size_t>(rank)] = OpenOrFail(own);
  });
  ASSERT_TRUE(ranks[0] != nullptr && ranks[1] != nullptr);
  for (std::uint32_t step = 1; step <= 10; ++step) {
    model_->Write(step);
    OnAllRanks(2, [&](int rank) {
      const auto of = static_cast<std::size_t>(rank);
      const auto save = ranks[of]->Save(step, model_->state_of(of), {.streams = {model_->streams()[of]}});
      EXPECT_EQ(save.ok() ? save->WaitKept(Soon()) : save.status(), Status::Ok()) << step << " on rank " << rank;
    });
  }
  OnAllRanks(2, [&](int rank) { EXPECT_EQ(ranks[static_cast<std::size_t>(rank)]->Drain(Soon()), Status::Ok()); });
  EXPECT_EQ(Mappings(), 2 * kSlots);
  EXPECT_EQ(ShardsIn(Folder()).first, 2U * kSlots);
  EXPECT_THAT(messages_.Seen(), Not(Contains(HasSubstr("no memory root"))));
  OnAllRanks(2, [&](int rank) { ranks[static_cast<std::size_t>(rank)].reset(); });

  const auto reader = OpenOrFail({.root = root_, .read_only = true});
  ASSERT_NE(reader, nullptr);
  Expect(*reader, *model_, 10);
}

}  // namespace
}  // namespace cairn
