#include "bench/gemini/gloo_pair.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <deque>
#include <exception>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status_macros.h"

namespace cairn::bench {
namespace {

using namespace std::chrono_literals;
using Store = c10::intrusive_ptr<c10d::Store>;
using Work = c10::intrusive_ptr<c10d::Work>;

constexpr const char* kAsked = "asked";  // How many have asked so far.
constexpr std::size_t kUnderWay = 8;     // Messages: enough that neither end waits for the other to be ready.
constexpr auto kJoin = 10s;              // For the other end, which has asked, to come.
constexpr auto kWait = 24h;              // A training may be silent for long; its end is noticed at once.
constexpr int kAttempts = 6;

// torch's errors carry a stack trace behind their first line. Not by Error(): torch's headers bring an fmt of their
// own.
Status Failed(const char* what, const std::exception& error) {
  const std::string text = error.what();
  return {StatusCode::kIoError, what + (": " + text.substr(0, text.find('\n')))};
}

at::Tensor Wrap(Bytes bytes) {
  return at::from_blob(const_cast<std::byte*>(bytes.data()), {static_cast<std::int64_t>(bytes.size())}, at::kByte);
}

/// A thread that waits for a message that is never sent notices when the other end is gone: gloo fails every operation
/// that has not begun, but forgets the one that it is in the middle of, which would wait for ever.
class TwoRanks : public Connection {
 public:
  TwoRanks(const Store& store, int rank, const std::string& address) : other_(1 - rank) {
    const auto options = c10d::ProcessGroupGloo::Options::create(kJoin);
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
    group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, 2, options);
    std::vector<at::Tensor> nothing{at::from_blob(&never_sent_, {1}, at::kByte)};
    lifeline_ = group_->recv(nothing, other_, kLifeline);
    listener_ = std::thread([this] { Listen(); });
  }
  ~TwoRanks() override {
    static_cast<void>(Flush());
    lifeline_->abort();
    listener_.join();
  }

  Status Send(Bytes bytes, std::uint64_t piece_bytes) override {
    return Exchange("sending", bytes, piece_bytes, sending_,
                    [this](std::vector<at::Tensor>& piece) { return group_->send(piece, other_, NextTag(sent_)); });
  }
  Status Flush() override { return AwaitAllBut(0, "sending", sending_); }
  Status Receive(MutableBytes bytes, std::uint64_t piece_bytes) override {
    std::deque<Work> receiving;
    Status status = Exchange("receiving", bytes, piece_bytes, receiving, [this](std::vector<at::Tensor>& piece) {
      return group_->recv(piece, other_, NextTag(received_));
    });
    if (status.ok()) status = AwaitAllBut(0, "receiving", receiving);
    return status;
  }

 private:
  static constexpr int kLifeline = 0x40000000;
  static int NextTag(int& used) { return used = (used + 1) % kLifeline; }

  template <typename Begin>
  Status Exchange(const char* what, Bytes bytes, std::uint64_t piece_bytes, std::deque<Work>& under_way,
                  const Begin& begin) {
    for (std::uint64_t at = 0; at < bytes.size(); at += piece_bytes) {
      CAIRN_RETURN_IF_ERROR(AwaitAllBut(kUnderWay - 1, what, under_way));
      std::vector<at::Tensor> piece{Wrap(bytes.subspan(at, std::min(piece_bytes, bytes.size() - at)))};
      try {
        under_way.push_back(begin(piece));
      } catch (const std::exception& error) {
        return Failed(what, error);
      }
    }
    return {};
  }

  Status AwaitAllBut(std::size_t left, const char* what, std::deque<Work>& under_way) {
    while (under_way.size() > left) {
      const Work oldest = std::move(under_way.front());
      under_way.pop_front();
      CAIRN_RETURN_IF_ERROR(Await(oldest, what));
    }
    return {};
  }

  Status Await(const Work& work, const char* what) CAIRN_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      if (gone_) return Gone(what);
      awaited_ = work;
    }
    bool done = false;
    Status status;
    try {
      done = work->wait(kWait);
    } catch (const std::exception& error) {
      status = Failed(what, error);
    }
    MutexLock lock(mutex_);
    awaited_.reset();
    return done || !status.ok() ? status : Gone(what);
  }

  void Listen() CAIRN_EXCLUDES(mutex_) {
    try {
      lifeline_->wait(kWait);
    } catch (const std::exception&) {  // The operations report it.
    }
    MutexLock lock(mutex_);
    gone_ = true;
    if (awaited_) awaited_->abort();
  }

  static Status Gone(const char* what) { return {StatusCode::kIoError, what + std::string(": the other end is gone")}; }

  const int other_;
  std::uint8_t never_sent_ = 0;
  c10::intrusive_ptr<c10d::Backend> group_;
  int sent_ = 0;
  int received_ = 0;
  std::deque<Work> sending_;
  Work lifeline_;

  Mutex mutex_;
  bool gone_ CAIRN_GUARDED_BY(mutex_) = false;
  Work awaited_ CAIRN_GUARDED_BY(mutex_);
  std::thread listener_;
};

// Each pair has names of its own in the store: a killed process leaves its addresses behind.
/// TCPStore and gloo write to sockets whose other end may be gone. Python, where they usually run, ignores the signal.
void IgnoreBrokenPipes() { static_cast<void>(std::signal(SIGPIPE, SIG_IGN)); }

Result<std::unique_ptr<Connection>> Join(const Store& store, std::int64_t number, int rank,
                                         const std::string& address) {
  IgnoreBrokenPipes();
  try {
    const Store pair = c10::make_intrusive<c10d::PrefixStore>("pair-" + std::to_string(number), store);
    return std::unique_ptr<Connection>(std::make_unique<TwoRanks>(pair, rank, address));
  } catch (const std::exception& error) {
    return Failed("connecting", error);
  }
}

class StoreMeeting : public GlooMeeting {
 public:
  explicit StoreMeeting(const std::string& address) : address_(address) {
    c10d::TCPStoreOptions options;
    options.port = 0;
    options.isServer = true;
    options.waitWorkers = false;
    store_ = c10::make_intrusive<c10d::TCPStore>(address, options);
  }

  [[nodiscard]] int port() const override { return store_->getPort(); }
  Result<bool> Asked() override {
    try {
      return store_->add(kAsked, 0) > served_;
    } catch (const std::exception& error) {
      return Failed("reading who asks", error);
    }
  }
  Result<std::unique_ptr<Connection>> Accept() override {
    try {
      served_ = store_->add(kAsked, 0);
    } catch (const std::exception& error) {
      return Failed("reading who asks", error);
    }
    return Join(store_, served_, 1, address_);
  }

 private:
  const std::string address_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
  std::int64_t served_ = 0;
};

}  // namespace

Result<std::unique_ptr<GlooMeeting>> GlooMeeting::Make(const std::string& address) {
  try {
    return std::unique_ptr<GlooMeeting>(std::make_unique<StoreMeeting>(address));
  } catch (const std::exception& error) {
    return Failed("opening a TCPStore", error);
  }
}

Result<std::unique_ptr<Connection>> Connect(const std::string& own_address, const std::string& address, int port) {
  IgnoreBrokenPipes();
  try {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(port);
    options.waitWorkers = false;
    const Store store = c10::make_intrusive<c10d::TCPStore>(address, options);
    Result<std::unique_ptr<Connection>> pair = Status(StatusCode::kIoError, "");
    // The owner may still be waiting for a training that was killed before it connected.
    for (int i = 0; i < kAttempts && !pair.ok(); ++i) pair = Join(store, store->add(kAsked, 1), 0, own_address);
    return pair;
  } catch (const std::exception& error) {
    return Failed("reaching the peer's TCPStore", error);
  }
}

}  // namespace cairn::bench
