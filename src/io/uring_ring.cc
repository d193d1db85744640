#include "io/uring_ring.h"

#include <array>
#include <cerrno>
#include <fstream>
#include <string>
#include <system_error>

#include "base/closed_streams.h"
#include "base/status_macros.h"

namespace cairn {
namespace {

// The usual causes of errors of io_uring_setup(2), most of them in containers.
std::string LikelyCause(int error) {
  if (error == ENOSYS) return "this kernel or its sandbox has no io_uring";
  if (error == ENOMEM) return "locked memory is limited (ulimit -l)";
  if (error != EPERM && error != EACCES) return "an unusual kernel or sandbox";
  int disabled = 0;
  std::ifstream("/proc/sys/kernel/io_uring_disabled") >> disabled;
  if (disabled != 0) return fmt::format("kernel.io_uring_disabled is {}", disabled);
  return "forbidden by a seccomp filter (usual in containers) or a security module";
}

Status Refused(const char* call, int error) {
  return Error(StatusCode::kUnsupported, "{}: {} (errno {}): {}", call, std::generic_category().message(error), error,
               LikelyCause(error));
}

}  // namespace

Result<std::unique_ptr<UringRing>> UringRing::Make(unsigned entries, bool newer_flags) {
  std::unique_ptr<UringRing> ring(new UringRing);
  CAIRN_RETURN_IF_ERROR(ring->Setup(entries, newer_flags));
  CAIRN_RETURN_IF_ERROR(ring->ReadOpcodes());
  CAIRN_RETURN_IF_ERROR(ring->SubmitNop());
  return ring;
}

UringRing::~UringRing() {
  if (open_) io_uring_queue_exit(&ring_);
}

Status UringRing::Setup(unsigned entries, bool newer_flags) {
  // Completions are processed when the owner asks, instead of interrupting it. Kernel 6.1 has the first set of flags,
  // 5.19 the second; an older one returns EINVAL.
  constexpr std::array<unsigned, 3> kFlags = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
                                              IORING_SETUP_COOP_TASKRUN, 0};
  TakeClosedStreams();  // Nobody can replace the descriptor of a ring.
  int outcome = -EINVAL;
  for (std::size_t i = newer_flags ? 0 : kFlags.size() - 1; i < kFlags.size() && outcome == -EINVAL; ++i) {
    io_uring_params params{};
    params.flags = kFlags.at(i) | IORING_SETUP_CLAMP;
    outcome = io_uring_queue_init_params(entries, &ring_, &params);
  }
  if (outcome < 0) return Refused("io_uring_setup", -outcome);
  open_ = true;
  if ((ring_.features & IORING_FEAT_EXT_ARG) == 0 || (ring_.features & IORING_FEAT_NODROP) == 0) {
    return Error(StatusCode::kUnsupported, "this kernel's io_uring is too old: expected kernel 5.15 or newer");
  }
  if (const int error = io_uring_ring_dontfork(&ring_); error < 0) return Refused("madvise of the ring", -error);
  // The kernel's default of four workers a core would make an fsync wait for a younger save's writes on a small
  // machine. If it cannot be raised, saves are only slower.
  std::array<unsigned, 2> workers = {entries, 0};
  (void)io_uring_register_iowq_max_workers(&ring_, workers.data());
  return {};
}

Status UringRing::ReadOpcodes() {
  const std::unique_ptr<io_uring_probe, decltype(&io_uring_free_probe)> probe(io_uring_get_probe_ring(&ring_),
                                                                              io_uring_free_probe);
  if (probe == nullptr) return Refused("io_uring_register of a probe", errno);
  for (unsigned op = 0; op < opcodes_.size(); ++op) {
    opcodes_.set(op, io_uring_opcode_supported(probe.get(), static_cast<int>(op)) != 0);
  }
  for (const auto needed : {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_FSYNC}) {
    if (!Has(needed)) return Error(StatusCode::kUnsupported, "this kernel's io_uring lacks opcode {}", int{needed});
  }
  return {};
}

Status UringRing::SubmitNop() {
  io_uring_prep_nop(io_uring_get_sqe(&ring_));
  if (const int outcome = io_uring_submit_and_wait(&ring_, 1); outcome < 0) {
    return Refused("io_uring_enter", -outcome);
  }
  io_uring_cqe* cqe = nullptr;
  if (const int outcome = io_uring_peek_cqe(&ring_, &cqe); outcome < 0) return Refused("io_uring completion", -outcome);
  io_uring_cqe_seen(&ring_, cqe);
  return {};
}

}  // namespace cairn
