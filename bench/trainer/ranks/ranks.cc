#include "ranks/ranks.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <csignal>
#include <deque>
#include <exception>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "cairn/torch.h"
#include "ranks/await_port.h"

namespace cairn::trainer {
namespace {

// Large enough for the network's full rate, small enough to copy one while another is on its way.
constexpr std::int64_t kBucketBytes = 25 << 20;
constexpr std::size_t kUnderWay = 4;

std::string FirstLine(const std::exception& error) {
  const std::string text = error.what();  // A stack trace follows.
  return text.substr(0, text.find('\n'));
}

/// An eventfd that the thread that finishes an operation may write after its waiter has gone.
class Event {
 public:
  Event() : descriptor_(::eventfd(0, EFD_CLOEXEC)) {}
  ~Event() { ::close(descriptor_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  [[nodiscard]] int descriptor() const { return descriptor_; }
  void Set() const { ::eventfd_write(descriptor_, 1); }

 private:
  const int descriptor_;
};

/// Tensors of one type, and a flat copy of them.
struct Bucket {
  std::vector<at::Tensor> tensors;
  at::Tensor flat;
};

/// The tensors in order, neighbours of the same type together.
std::vector<Bucket> MakeBuckets(const std::vector<at::Tensor>& tensors) {
  std::vector<Bucket> buckets;
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    const auto more = static_cast<std::int64_t>(tensor.nbytes());
    if (buckets.empty() || bytes + more > kBucketBytes ||
        buckets.back().tensors.front().scalar_type() != tensor.scalar_type()) {
      buckets.emplace_back();
      bytes = 0;
    }
    buckets.back().tensors.push_back(tensor);
    bytes += more;
  }
  return buckets;
}

template <typename Body>
void ForEachPart(const Bucket& bucket, const Body& body) {
  std::int64_t at = 0;
  for (const at::Tensor& tensor : bucket.tensors) {
    body(tensor, bucket.flat.narrow(0, at, tensor.numel()).view(tensor.sizes()));
    at += tensor.numel();
  }
}

void CopyIn(Bucket& bucket) {
  std::int64_t elements = 0;
  for (const at::Tensor& tensor : bucket.tensors) elements += tensor.numel();
  bucket.flat = at::empty({elements}, bucket.tensors.front().options());
  ForEachPart(bucket, [](const at::Tensor& tensor, const at::Tensor& part) { part.copy_(tensor); });
}

void CopyOut(const Bucket& bucket) {
  ForEachPart(bucket, [](const at::Tensor& tensor, const at::Tensor& part) { tensor.copy_(part); });
}

}  // namespace

Ranks::Ranks(RankEnvironment environment, const std::string& backend, at::Device device, std::chrono::seconds patience)
    : environment_(std::move(environment)),
      backend_name_(backend),
      device_(device),
      patience_(patience),
      exceptions_(std::uncaught_exceptions()) {
  static_cast<void>(std::signal(SIGPIPE, SIG_IGN));  // TCPStore and gloo write to sockets whose other end may be gone.
  const ConnectBackend connect = LoadBackend(backend, device);
  try {
    store_ = OpenStore();
    peers_ = std::make_unique<Peers>(cairn::WrapStore(OpenStore()), rank(), world(), ThisProcess(), patience_);
    backend_ = connect({.store = c10::make_intrusive<c10d::PrefixStore>("backend", store_),
                        .rank = rank(),
                        .world = world(),
                        .timeout = timeout()});
  } catch (const std::exception& error) {
    if (peers_ != nullptr) Fail(FirstLine(error));
    throw std::runtime_error("rank " + std::to_string(rank()) + " of " + std::to_string(world()) + " at " +
                             environment_.master_address + ":" + std::to_string(environment_.master_port) + ": " +
                             FirstLine(error));
  }
}

Ranks::~Ranks() {
  if (std::uncaught_exceptions() <= exceptions_) return;
  if (peers_ != nullptr && !left_) peers_->Leave("see its output");
  // Closing the backend would wait for operations that may never end. The process ends now.
  static_cast<void>(backend_.release());
}

Store Ranks::OpenStore() const {
  c10d::TCPStoreOptions options;
  options.port = environment_.master_port;
  options.isServer = rank() == 0 && !environment_.store_runs && store_ == nullptr;
  options.waitWorkers = false;
  options.timeout = timeout();
  if (!options.isServer) {
    AwaitPort(environment_.master_address, environment_.master_port, std::chrono::steady_clock::now() + patience_);
  }
  return c10::make_intrusive<c10d::PrefixStore>(
      "cairn_train/" + environment_.attempt, c10::make_intrusive<c10d::TCPStore>(environment_.master_address, options));
}

std::shared_ptr<cairn::Group> Ranks::MakeGroup(const std::string& root) const {
  auto group =
      cairn::MakeTorchGroup(store_, {.rank = rank(), .size = world(), .name = root, .open_timeout = patience_});
  if (!group.ok()) throw std::runtime_error(group.status().ToString());
  return *group;
}

void Ranks::ExpectAlike(const Settings& settings) {
  try {
    peers_->ExpectAlike(settings);
  } catch (const std::exception& error) {
    Leave(error.what());
    throw;
  }
}

void Ranks::Leave(const std::string& why) {
  left_ = true;
  peers_->Leave(why);
}

void Ranks::Fail(const std::string& why) {
  left_ = true;
  const std::string gone = peers_->DescribeGone();
  throw std::runtime_error(gone.empty() ? why : gone + " (" + why + ")");
}

void Ranks::Finish(const Work& work) {
  try {
    const auto done = std::make_shared<Event>();
    work->getFuture()->addCallback([done](c10::ivalue::Future&) { done->Set(); });
    if (!peers_->AwaitReadable(done->descriptor())) Fail("while the others were waited for");
    work->wait();
  } catch (const std::exception& error) {
    if (left_) throw;
    Fail(FirstLine(error));
  }
}

void Ranks::Broadcast(const std::vector<at::Tensor>& tensors) {
  const c10::NoGradGuard no_grad;
  for (Bucket& bucket : MakeBuckets(tensors)) {
    CopyIn(bucket);
    std::vector<at::Tensor> flat = {bucket.flat};
    Finish(backend_->broadcast(flat));
    CopyOut(bucket);
  }
}

void Ranks::Sum(const std::vector<at::Tensor>& tensors) {
  const c10::NoGradGuard no_grad;
  std::deque<std::pair<Bucket, Work>> under_way;
  const auto finish_oldest = [&] {
    Finish(under_way.front().second);
    CopyOut(under_way.front().first);
    under_way.pop_front();
  };
  for (Bucket& bucket : MakeBuckets(tensors)) {
    if (under_way.size() == kUnderWay) finish_oldest();
    CopyIn(bucket);
    std::vector<at::Tensor> flat = {bucket.flat};
    Work work = backend_->allreduce(flat);
    under_way.emplace_back(std::move(bucket), std::move(work));
  }
  while (!under_way.empty()) finish_oldest();
}

void Ranks::Barrier() {
  const at::Tensor one = at::zeros({1}, at::TensorOptions(device_));
  Sum({one});
  static_cast<void>(one.item<float>());  // A GPU has then done it.
}

void Ranks::Prove() {
  const auto options = at::TensorOptions(device_);
  const auto expect = [](const char* what, const at::Tensor& found, double value) {
    if (!at::equal(found, at::full_like(found, value))) throw std::runtime_error(std::string(what) + ": other bytes");
  };
  const at::Tensor summed = at::full({3 << 20}, rank() + 1, options);
  Sum({summed});
  expect("all-reduce", summed, world() * (world() + 1) / 2.0);
  const at::Tensor given = at::full({1 << 20}, rank(), options);
  Broadcast({given});
  expect("broadcast", given, 0);
  if (world() > 1 || backend_name_ == "nccl") ProveExchange();
}

void Ranks::ProveExchange() {
  const auto options = at::TensorOptions(device_);
  std::vector<at::Tensor> sent = {at::full({1 << 20}, rank(), options)};
  std::vector<at::Tensor> received = {at::full({1 << 20}, -1, options)};
  const int next = (rank() + 1) % world();
  const int previous = (rank() + world() - 1) % world();
  if (backend_name_ == "nccl") {  // One group, as two calls would wait for each other where a rank sends to itself.
    backend_->startCoalescing();
    backend_->send(sent, next, 0);
    backend_->recv(received, previous, 0);
    Finish(backend_->endCoalescing());
  } else {
    const Work sending = backend_->send(sent, next, 0);
    Work receiving = backend_->recv(received, previous, 0);
    receiving->wait();
    sending->wait();
  }
  if (!at::equal(received[0], at::full_like(received[0], previous))) {
    throw std::runtime_error("send and receive: other bytes");
  }
}

}  // namespace cairn::trainer
