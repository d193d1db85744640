#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "device/copy_kernels.h"

namespace cairn {

/// Runs the threads of one kernel of a PTX text, instruction by instruction: those instructions that Cairn's kernels
/// have (scripts/make_ptx.py lists them). Throws std::runtime_error for any other.
class PtxKernel {
 public:
  PtxKernel(std::string_view ptx, const std::string& name);

  /// Accesses of a thread to generic memory. Values have `bytes` bytes: 1, 2, 4 or 8; of 16-byte words there are two.
  struct Memory {
    std::function<std::uint64_t(std::uint64_t address, std::size_t bytes)> load;
    std::function<void(std::uint64_t address, std::size_t bytes, std::uint64_t value)> store;
    std::function<kernels::Word(std::uint64_t address)> load_word;
    std::function<void(std::uint64_t address, kernels::Word word)> store_word;
  };
  /// One thread of a grid of blocks of `block` threads.
  void Run(const std::byte* parameter, std::uint32_t thread, std::uint32_t block, std::uint32_t blocks,
           const Memory& memory) const;
  [[nodiscard]] std::size_t parameter_bytes() const { return parameter_bytes_; }

 private:
  struct Thread;
  using Step = std::function<void(Thread&)>;
  using Operand = std::function<std::uint64_t(const Thread&)>;
  struct Instruction {
    Step step;
    /// The register of the guard, or none; and which value lets the instruction run.
    int guard = -1;
    bool guard_value = true;
  };

  void ParseConstants(std::string_view ptx);
  void Parse(const std::string& line);
  Step Compile(const std::vector<std::string>& name, const std::vector<std::string>& operands);
  Step CompileConstant(const std::vector<std::string>& operands);
  Step CompileAccess(const std::vector<std::string>& name, const std::vector<std::string>& operands);
  Operand Value(const std::string& text);
  Operand Address(const std::string& text);
  int Register(const std::string& name);

  std::size_t parameter_bytes_ = 0;
  std::string parameter_;
  std::map<std::string, int> registers_;
  std::map<std::string, std::size_t> labels_;
  // The module's arrays of bytes. Kernels only read them.
  std::map<std::string, std::vector<std::byte>> constants_;
  std::vector<Instruction> instructions_;
};

}  // namespace cairn
