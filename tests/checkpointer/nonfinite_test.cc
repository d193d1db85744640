// Checkpoints with NaNs and infinities are marked, and retention keeps a finite one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/finite.h"
#include "cairn/cairn.h"
#include "support/model_gpu.h"
#include "support/small_run.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using namespace literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint32_t kNaN = 0x7fc00000;
constexpr std::uint32_t kInfinity = 0xff800000;

Options Marking(const std::string& root) {
  Options options = SmallOptions(root);
  options.nonfinite = MarkNonFinite::kMark;
  return options;
}

// Zeros: a long tensor that spans chunks, and shares blocks with the integers before it and the bytes behind it; a
// strided one; a small one, which is copied in the call.
class Zeros {
 public:
  explicit Zeros(DeviceId device = {}) : tensors_(device) {
    tensors_.Add("integers", 150'001, DType::kI64);
    tensors_.Add("long", 700'003);
    tensors_.Add("small", 5);
    tensors_.Add("bytes", 300'001, DType::kU8);
    TensorView strided{.data = strided_.data(), .shape = {100, 200}, .strides = {201, 1}, .device = device};
    if (!tensors_.state().Add("strided", strided).ok()) ADD_FAILURE();
  }

  void Set(std::size_t tensor, std::size_t at, std::uint32_t bits) {
    std::memcpy(tensors_.memory()[tensor].data() + at * sizeof(bits), &bits, sizeof(bits));
  }
  void SetStrided(std::size_t row, std::size_t column, std::uint32_t bits) { strided_[row * 201 + column] = bits; }
  [[nodiscard]] const State& state() { return tensors_.state(); }

 private:
  std::vector<std::uint32_t> strided_ = std::vector<std::uint32_t>(100 * 201);
  Tensors tensors_;
};

Status SaveZeros(Checkpointer& checkpointer, std::uint64_t step, Zeros& zeros) {
  const auto save = checkpointer.Save(step, zeros.state());
  return save.ok() ? save->WaitDurable(Soon()) : save.status();
}

std::vector<NonFinite> Marks(const Checkpointer& checkpointer) {
  std::vector<NonFinite> marks;
  for (const CheckpointInfo& info : *checkpointer.List()) marks.push_back(info.nonfinite);
  return marks;
}

class NonFiniteOn : public ::testing::TestWithParam<DeviceKind> {
 protected:
  [[nodiscard]] DeviceId device() const { return GetParam() == DeviceKind::kCpu ? DeviceId{} : kModelGpu; }
  std::unique_ptr<Checkpointer> Open(const Options& options) {
    return OpenOrFail(options, GetParam() == DeviceKind::kCpu ? Wiring{} : gpu_.Wire());
  }

  const TempDir dir_;
  ModelGpu gpu_;
};
INSTANTIATE_TEST_SUITE_P(, NonFiniteOn, ::testing::Values(DeviceKind::kCpu, DeviceKind::kCuda),
                         [](const auto& tested) { return tested.param == DeviceKind::kCpu ? "Cpu" : "Gpu"; });

TEST_P(NonFiniteOn, OneValueOfAnyTensorMarksTheCheckpoint) {
  Options options = Marking(dir_ / "run");
  options.keep_last = 0;
  const auto checkpointer = Open(options);
  std::vector<NonFinite> expected;
  const auto save = [&](NonFinite mark, const std::function<void(Zeros&)>& change) {
    Zeros zeros(device());
    change(zeros);
    ASSERT_EQ(SaveZeros(*checkpointer, expected.size() + 1, zeros), Status::Ok());
    expected.push_back(mark);
  };

  save(NonFinite::kNone, [](Zeros&) {});
  for (const std::size_t at : {0, 1, 262'144, 500'000, 700'002}) {
    save(NonFinite::kNaN, [at](Zeros& zeros) { zeros.Set(1, at, kNaN); });
  }
  save(NonFinite::kInfinity, [](Zeros& zeros) { zeros.Set(1, 262'143, kInfinity); });
  save(NonFinite::kNaN, [](Zeros& zeros) { zeros.Set(2, 4, kNaN); });
  save(NonFinite::kInfinity, [](Zeros& zeros) { zeros.SetStrided(99, 199, kInfinity); });
  save(NonFinite::kNaN, [](Zeros& zeros) {
    zeros.SetStrided(0, 0, kInfinity);
    zeros.Set(1, 9, kNaN);
  });
  save(NonFinite::kNone, [](Zeros& zeros) {  // These are no floats, and what is between rows is nobody's.
    zeros.Set(0, 300'001, kNaN);
    zeros.Set(3, 0, kNaN);
    zeros.SetStrided(3, 200, kNaN);
  });

  EXPECT_EQ(Marks(*checkpointer), expected);
}

TEST_P(NonFiniteOn, NobodyLooksIfItIsOff) {
  Options options = SmallOptions(dir_ / "run");
  options.nonfinite = MarkNonFinite::kOff;
  const auto checkpointer = Open(options);
  Zeros zeros(device());
  zeros.Set(1, 0, kNaN);

  ASSERT_EQ(SaveZeros(*checkpointer, 1, zeros), Status::Ok());

  EXPECT_THAT(Marks(*checkpointer), ElementsAre(NonFinite::kNone));
}

TEST(NonFiniteMarks, AreTheDefaultWhereTheyCostLittle) {
  const TempDir dir;
  const auto checkpointer = OpenOrFail(SmallOptions(dir / "run"));
  Zeros zeros;
  zeros.Set(1, 0, kNaN);

  ASSERT_EQ(SaveZeros(*checkpointer, 1, zeros), Status::Ok());

  EXPECT_THAT(Marks(*checkpointer), ElementsAre(FindsNonFiniteCheaply() ? NonFinite::kNaN : NonFinite::kNone));
}

TEST(NonFiniteMarks, NeedTheHostsChecksums) {
  const TempDir dir;
  Options without = Marking(dir / "run");
  without.checksums = false;
  Options by_gpu = Marking(dir / "run");
  by_gpu.gpu_checksums = true;

  EXPECT_THAT(Checkpointer::Open(without).status().message(), HasSubstr("without checksums, found \"mark\""));
  EXPECT_THAT(Checkpointer::Open(by_gpu).status().message(), HasSubstr("with gpu_checksums, found \"mark\""));
  by_gpu.nonfinite = MarkNonFinite::kAuto;
  EXPECT_NE(OpenOrFail(by_gpu), nullptr);
}

class LastFinite : public ::testing::Test {
 protected:
  void Open() {
    checkpointer_.reset();
    Options options = Marking(dir_ / "run");
    options.keep_last = 2;
    checkpointer_ = OpenOrFail(options);
  }
  void Save(std::uint64_t step, std::uint32_t bits = 0) {
    zeros_.Set(2, 0, bits);
    ASSERT_EQ(SaveZeros(*checkpointer_, step, zeros_), Status::Ok());
    ASSERT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
  }

  const TempDir dir_;
  Zeros zeros_;
  std::unique_ptr<Checkpointer> checkpointer_;
};

TEST_F(LastFinite, StaysBesideTheNewest) {
  Open();
  Save(1);
  Save(2);
  for (const std::uint64_t step : {3, 4, 5}) Save(step, kNaN);
  EXPECT_THAT(ListedSteps(*checkpointer_), ElementsAre(2, 4, 5));

  Open();
  Save(6, kInfinity);
  EXPECT_THAT(ListedSteps(*checkpointer_), ElementsAre(2, 5, 6));

  for (const std::uint64_t step : {7, 8}) Save(step);
  EXPECT_THAT(ListedSteps(*checkpointer_), ElementsAre(7, 8));
}

TEST_F(LastFinite, IsTheOneBeforeIfItsShardIsDamaged) {
  Open();
  Save(1);
  Save(2);
  ASSERT_EQ(checkpointer_->Pin(1), Status::Ok());
  for (const std::uint64_t step : {3, 4}) Save(step, kNaN);
  const auto list = *checkpointer_->List();
  std::filesystem::resize_file(list[1].path + "/shard-00000.safetensors", 10);

  Open();
  ASSERT_EQ(checkpointer_->Unpin(1), Status::Ok());
  Save(5, kNaN);

  EXPECT_THAT(ListedSteps(*checkpointer_), ElementsAre(1, 2, 4, 5));
}

// One rank's tensors are enough, and rank 0 writes the mark down.
TEST(NonFiniteMarks, AnyRankMarksTheCheckpoint) {
  const TempDir dir;
  Options options = Marking(dir / "run");
  options.keep_last = 1;
  const auto ranks = OpenRanks(2, options);
  ASSERT_EQ(ranks.size(), 2U);
  Zeros zeros;
  Zeros others;

  for (const std::uint64_t step : {1, 2, 3}) {
    others.Set(1, 400'000, step == 1 ? 0 : kNaN);
    const auto save = ranks[0]->Save(step, zeros.state());
    ASSERT_EQ(SaveZeros(*ranks[1], step, others), Status::Ok());
    ASSERT_EQ(save->WaitDurable(Soon()), Status::Ok());
  }

  ASSERT_EQ(ranks[0]->Drain(Soon()), Status::Ok());
  EXPECT_THAT(ListedSteps(*ranks[0]), ElementsAre(1, 3));
  EXPECT_THAT(Marks(*ranks[1]), ElementsAre(NonFinite::kNone, NonFinite::kNaN));
}

}  // namespace
}  // namespace cairn
