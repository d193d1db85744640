// Cairn's kernels: the committed PTX, and its source as the host's compiler makes it.
#include <cstring>
#include <string>
#include <string_view>

#include "device/copy_kernels.h"
#include "device/fake_cuda/driver.h"
#include "device/kernel_threads.h"
#include "device/sum_kernel.h"

namespace cairn::fake_cuda {
namespace {

constexpr std::string_view kCopyPtx =
#include "device/copy_kernels.ptx.inc"
    ;
constexpr std::string_view kSumPtx =
#include "device/sum_kernel.ptx.inc"
    ;

void FailKernel(int gpu, CUresult result) {
  const Lock lock(driver().mutex);
  SetStickyLocked(driver().contexts[gpu], result);
}

// Defines the kernel if the PTX has one of this name whose parameter is as long as the source's.
template <typename Parameter, typename Thread>
void Define(std::string_view ptx, const std::string& name, const Thread& thread) {
  const std::string parameter = name + "_param_0[" + std::to_string(sizeof(Parameter)) + "]";
  if (ptx.find(".entry " + name + "(") == ptx.npos || ptx.find(parameter) == ptx.npos) return;
  DefineKernel(name, {.argument_bytes = {sizeof(Parameter)}, .run = [thread](const Launch& launch, void** arguments) {
                        // The .maxntid of all of them.
                        constexpr std::array<unsigned int, 3> block = {kernels::kThreadsPerBlock, 1, 1};
                        if (launch.block != block || launch.grid[1] != 1 || launch.grid[2] != 1) {
                          return FailKernel(launch.gpu, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
                        }
                        Parameter copied;
                        std::memcpy(&copied, arguments[0], sizeof(copied));
                        Lock lock(driver().mutex);
                        const Ranges ranges = RangesForKernels(launch.gpu);
                        lock.unlock();
                        KernelMemory access([&ranges](std::uint64_t address, std::size_t bytes, bool /*writes*/) {
                          return Holds(ranges, address, bytes);
                        });
                        const std::uint64_t threads = std::uint64_t{launch.grid[0]} * launch.block[0];
                        RunGrid(threads, launch.grid[0],
                                [&](std::uint64_t index) { thread(copied, index, threads, access); });
                        if (!access.error().empty()) FailKernel(launch.gpu, CUDA_ERROR_ILLEGAL_ADDRESS);
                      }});
}

}  // namespace

void DefineCairnsKernels() {
  Define<kernels::StridedCopy>(kCopyPtx, "cairn_copy_strided",
                               [](const auto& copy, std::uint64_t thread, std::uint64_t threads, auto& access) {
                                 CopyStridedThread(copy, thread, threads, access);
                               });
  Define<kernels::PieceTable>(kCopyPtx, "cairn_copy_pieces",
                              [](const auto& table, std::uint64_t thread, std::uint64_t threads, auto& access) {
                                CopyPiecesThread(table, thread, threads, access);
                              });
  Define<kernels::SumTable>(kSumPtx, "cairn_sum_slices",
                            [](const auto& table, std::uint64_t thread, std::uint64_t threads, auto& access) {
                              SumSlicesThread(table, thread, threads, access);
                            });
  const Lock lock(driver().mutex);
  driver().images = {kCopyPtx, kSumPtx};
}

}  // namespace cairn::fake_cuda
