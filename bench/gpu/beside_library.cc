// The library that Python loads into the process of torch, and calls without holding its lock: the experiments of
// scripts/prove-gpu X (cairn_bench/gpu/programs/beside.py).
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "bench/gpu/beside.h"

namespace cairn::bench {
namespace {

using Clock = std::chrono::steady_clock;

/// What Python holds.
struct Opened {
  std::unique_ptr<Beside> beside;
  Status status;
};

template <typename Body>
double Timed(void* opened, const Body& body) {
  auto& all = *static_cast<Opened*>(opened);
  const auto began = Clock::now();
  all.status = body(*all.beside);
  return all.status.ok() ? std::chrono::duration<double>(Clock::now() - began).count() : -1;
}

}  // namespace

extern "C" {

// Never null. What failed is said by beside_error, also by the other calls, which then return a negative number.
void* beside_open(std::uint64_t host_bytes, std::uint64_t gpu_bytes) {
  auto opened = std::make_unique<Opened>();
  Result<std::shared_ptr<const CudaDriver>> driver = CudaDriver::Load();
  opened->status = driver.status();
  if (driver.ok()) {
    opened->beside = std::make_unique<Beside>(*driver);
    opened->status = opened->beside->Open(host_bytes, gpu_bytes);
  }
  return opened.release();
}

/// Null if the last call succeeded; valid until the next one.
const char* beside_error(void* opened) {
  static thread_local std::string text;
  const Status& status = static_cast<Opened*>(opened)->status;
  text = status.ToString();
  return status.ok() ? nullptr : text.c_str();
}

// Seconds until all chunks are copied.
double beside_to_host(void* opened, const char* then, std::uint64_t chunk, std::uint64_t count) {
  return Timed(opened, [&](Beside& beside) { return beside.ToHost(then, chunk, count); });
}
double beside_stage(void* opened, const char* way, std::uint64_t chunk, std::uint64_t count) {
  return Timed(opened, [&](Beside& beside) { return beside.Stage(way, chunk, count); });
}
double beside_strided(void* opened, unsigned int blocks, std::uint64_t chunk, std::uint64_t count) {
  return Timed(opened, [&](Beside& beside) { return beside.Strided(blocks, chunk, count); });
}

// The longest launch of another thread, in seconds; `taken`: what the stream had when the first call blocked, or all.
double beside_fill(void* opened, const char* kind, std::uint64_t count, std::uint64_t* taken) {
  auto& all = *static_cast<Opened*>(opened);
  const Result<Beside::Filled> filled = all.beside->Fill(kind, count);
  all.status = filled.status();
  if (!filled.ok()) return -1;
  *taken = filled->taken;
  return filled->longest_launch;
}

void beside_close(void* opened) { delete static_cast<Opened*>(opened); }

}  // extern "C"

}  // namespace cairn::bench
