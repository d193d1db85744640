#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "io/io_queue.h"
#include "testing/temp_dir.h"

namespace cairn {

/// One implementation of IoQueue under the contract suite.
struct QueueCase {
  std::string name;
  IoQueueFactory make;
};
[[nodiscard]] inline std::string CaseName(const testing::TestParamInfo<QueueCase>& info) { return info.param.name; }
inline std::ostream& operator<<(std::ostream& out, const QueueCase& value) { return out << value.name; }
/// Every implementation, and every wrapper without faults.
[[nodiscard]] std::vector<QueueCase> AllQueues();

inline constexpr int kTestDepth = 4;

class IoQueueContract : public testing::TestWithParam<QueueCase> {
 protected:
  void SetUp() override {
    auto made = GetParam().make();
    if (!made.ok() && made.status().code() == StatusCode::kUnsupported) GTEST_SKIP() << made.status();
    ASSERT_TRUE(made.ok()) << made.status();
    queue_ = *std::move(made);
  }

  /// Submits one operation and runs the queue until it is done: the value or -errno.
  std::int64_t Run(IoRequest request) {
    std::optional<std::int64_t> result;
    queue_->Submit(std::move(request), [&result](std::int64_t value) { result = value; });
    while (!result.has_value()) {
      if (const auto ran = queue_->RunOnce(Deadline::Infinite()); !ran.ok()) {
        ADD_FAILURE() << ran.status();
        return -1;
      }
    }
    return *result;
  }
  /// Runs the queue until nothing is pending.
  void Drain() {
    while (queue_->pending() > 0) ASSERT_TRUE(queue_->RunOnce(Deadline::Infinite()).ok());
  }

  int Open(const std::string& path, int flags) {
    return static_cast<int>(Run({.op = IoOp::kOpen, .path = path, .flags = flags, .mode = 0644}));
  }
  std::int64_t Close(int fd) { return Run({.op = IoOp::kClose, .fd = fd}); }
  std::int64_t Write(int fd, const std::string& text, std::uint64_t offset = 0) {
    std::string copy = text;
    return Run({.op = IoOp::kWrite, .fd = fd, .buffer = copy.data(), .length = copy.size(), .offset = offset});
  }

  void MakeFile(const std::string& name, const std::string& text) const { std::ofstream(dir_ / name) << text; }
  [[nodiscard]] std::string Contents(const std::string& name) const {
    std::ifstream file(dir_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  TempDir dir_;
  std::unique_ptr<IoQueue> queue_;
};

/// Memory aligned for O_DIRECT.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(std::size_t bytes)
      : bytes_(bytes),
        data_(static_cast<std::byte*>(
            ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
  ~AlignedBuffer() { ::munmap(data_, bytes_); }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return bytes_; }

 private:
  std::size_t bytes_;
  std::byte* data_;
};

}  // namespace cairn
