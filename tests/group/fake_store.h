#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "group/store_group.h"

namespace cairn {

/// StoreGroups of one group, with a thread for each that does what Python's thread does with a store: it delivers the
/// rank's messages to their readers. A rank that has stopped leaves.
class FakeStore {
 public:
  explicit FakeStore(int size) {
    for (int rank = 0; rank < size; ++rank) ends_.push_back(std::make_shared<StoreGroup>(rank, size));
    for (int rank = 0; rank < size; ++rank) threads_.emplace_back([this, rank] { Serve(rank); });
  }
  ~FakeStore() {
    for (const auto& end : ends_) end->Stop();
    for (std::thread& thread : threads_) thread.join();
  }
  FakeStore(const FakeStore&) = delete;
  FakeStore& operator=(const FakeStore&) = delete;

  [[nodiscard]] StoreGroup& of(int rank) const { return *ends_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] int size() const { return static_cast<int>(ends_.size()); }

 private:
  void Serve(int rank) {
    const auto each_reader = [&](const auto& call) {
      if (rank != 0) return call(of(0));
      for (int reader = 1; reader < size(); ++reader) call(of(reader));
    };
    while (true) {
      const Result<StoreGroup::Message> message = of(rank).NextMessage(Deadline::Infinite());
      if (!message.ok()) break;
      each_reader([&](StoreGroup& reader) { reader.Hear(rank, message->key, message->text); });
    }
    each_reader([&](StoreGroup& reader) { reader.Leave(rank); });
  }

  std::vector<std::shared_ptr<StoreGroup>> ends_;
  std::vector<std::thread> threads_;
};

}  // namespace cairn
