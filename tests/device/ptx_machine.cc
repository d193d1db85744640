#include "device/ptx_machine.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <sstream>

namespace cairn {
namespace {

std::string Trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == text.npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(" \t") + 1 - begin));
}

// At `separator`, except within brackets.
std::vector<std::string> Split(std::string_view text, char separator) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
    if (c == separator && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  for (std::string& part : parts) part = Trim(part);
  return parts;
}

// The size of "u32" or "b64"; a predicate's is 0.
std::size_t BytesOf(const std::string& type) {
  return type == "pred" ? 0 : static_cast<std::size_t>(std::stoi(type.substr(1))) / 8;
}
std::uint64_t Truncate(std::uint64_t value, std::size_t bytes) {
  return bytes >= 8 ? value : value & ((std::uint64_t{1} << (8 * bytes)) - 1);
}
std::int64_t Signed(std::uint64_t value, std::size_t bytes) {
  return bytes == 8 ? static_cast<std::int64_t>(value) : static_cast<std::int32_t>(static_cast<std::uint32_t>(value));
}

[[noreturn]] void Unknown(const std::string& what) { throw std::runtime_error("PTX that is not known: " + what); }

using Function = std::uint64_t (*)(std::uint64_t, std::uint64_t, std::size_t);

Function Arithmetic(const std::string& name) {
  using U = std::uint64_t;
  static const std::map<std::string, Function> functions = {
      {"add", [](U a, U b, std::size_t) { return a + b; }},
      {"sub", [](U a, U b, std::size_t) { return a - b; }},
      {"mul", [](U a, U b, std::size_t) { return a * b; }},
      {"div", [](U a, U b, std::size_t) { return a / b; }},
      {"min", [](U a, U b, std::size_t) { return std::min(a, b); }},
      {"max", [](U a, U b, std::size_t) { return std::max(a, b); }},
      {"and", [](U a, U b, std::size_t) { return a & b; }},
      {"or", [](U a, U b, std::size_t) { return a | b; }},
      {"xor", [](U a, U b, std::size_t) { return a ^ b; }},
      // Shifts by the width or more give 0.
      {"shl", [](U a, U b, std::size_t n) { return Truncate(b, 4) >= 8 * n ? 0 : a << Truncate(b, 4); }},
      {"shr", [](U a, U b, std::size_t n) { return Truncate(b, 4) >= 8 * n ? 0 : a >> Truncate(b, 4); }},
  };
  const auto found = functions.find(name);
  return found == functions.end() ? nullptr : found->second;
}

bool Compare(const std::string& how, bool is_signed, std::uint64_t a, std::uint64_t b, std::size_t bytes) {
  const bool less = is_signed ? Signed(a, bytes) < Signed(b, bytes) : a < b;
  if (how == "eq") return a == b;
  if (how == "ne") return a != b;
  if (how == "lt") return less;
  if (how == "le") return less || a == b;
  if (how == "gt") return !less && a != b;
  if (how == "ge") return !less;
  Unknown("setp." + how);
}

}  // namespace

struct PtxKernel::Thread {
  const Memory& memory;
  const std::byte* parameter = nullptr;
  std::size_t parameter_bytes = 0;
  std::uint64_t tid = 0;
  std::uint64_t ntid = 0;
  std::uint64_t ctaid = 0;
  std::uint64_t nctaid = 0;
  std::vector<std::uint64_t> registers;
  std::size_t next = 0;
  bool returned = false;

  [[nodiscard]] std::uint64_t Parameter(std::uint64_t at, std::size_t bytes) const {
    if (at % bytes != 0 || at + bytes > parameter_bytes) throw std::runtime_error("bad access to the parameter");
    std::uint64_t value = 0;
    std::memcpy(&value, parameter + at, bytes);
    return value;
  }
};

PtxKernel::PtxKernel(std::string_view ptx, const std::string& name) {
  const std::size_t begin = ptx.find(".entry " + name + "(");
  if (begin == ptx.npos) throw std::runtime_error("no kernel " + name);
  ParseConstants(ptx);
  parameter_ = name + "_param_0";
  const std::size_t size = ptx.find(parameter_ + "[", begin) + parameter_.size() + 1;
  parameter_bytes_ = std::stoul(std::string(ptx.substr(size, 8)));
  std::istringstream lines(std::string(ptx.substr(ptx.find('{', begin))));
  std::string line;
  std::getline(lines, line);
  std::vector<std::string> body;
  while (std::getline(lines, line) && line != "}") {
    line = Trim(line.substr(0, line.find("//")));
    if (line.empty() || line.starts_with(".")) continue;  // Declarations, and hints to the compiler.
    if (line.ends_with(":")) {
      labels_[line.substr(0, line.size() - 1)] = body.size();
    } else {
      body.push_back(line.substr(0, line.find(';')));
    }
  }
  for (const std::string& instruction : body) Parse(instruction);
}

// ".global .align 4 .b8 NAME[BYTES] = {0, 1, ...};"
void PtxKernel::ParseConstants(std::string_view ptx) {
  constexpr std::string_view kArray = ".global .align 4 .b8 ";
  for (std::size_t at = ptx.find(kArray); at != ptx.npos; at = ptx.find(kArray, at + 1)) {
    const std::size_t name = at + kArray.size();
    const std::size_t open = ptx.find('{', name);
    std::vector<std::byte>& bytes = constants_[std::string(ptx.substr(name, ptx.find('[', name) - name))];
    for (const std::string& byte : Split(ptx.substr(open + 1, ptx.find('}', open) - open - 1), ',')) {
      bytes.push_back(static_cast<std::byte>(std::stoul(byte)));
    }
  }
}

int PtxKernel::Register(const std::string& name) {
  return registers_.try_emplace(name, static_cast<int>(registers_.size())).first->second;
}

void PtxKernel::Parse(const std::string& line) {
  Instruction instruction;
  std::string rest = line;
  if (rest.starts_with("@")) {
    const std::size_t space = rest.find_first_of(" \t");
    instruction.guard_value = rest[1] != '!';
    instruction.guard =
        Register(rest.substr(instruction.guard_value ? 1 : 2, space - (instruction.guard_value ? 1 : 2)));
    rest = Trim(rest.substr(space));
  }
  const std::size_t space = std::min(rest.find_first_of(" \t"), rest.size());
  instruction.step = Compile(Split(rest.substr(0, space), '.'), Split(Trim(rest.substr(space)), ','));
  instructions_.push_back(std::move(instruction));
}

PtxKernel::Operand PtxKernel::Value(const std::string& text) {
  if (text == "%tid.x") return [](const Thread& thread) { return thread.tid; };
  if (text == "%ntid.x") return [](const Thread& thread) { return thread.ntid; };
  if (text == "%ctaid.x") return [](const Thread& thread) { return thread.ctaid; };
  if (text == "%nctaid.x") return [](const Thread& thread) { return thread.nctaid; };
  if (text.starts_with("%")) {
    return [at = static_cast<std::size_t>(Register(text))](const Thread& thread) { return thread.registers[at]; };
  }
  if (text == parameter_) return [](const Thread&) { return std::uint64_t{0}; };
  if (const auto constant = constants_.find(text); constant != constants_.end()) {
    return [at = reinterpret_cast<std::uintptr_t>(constant->second.data())](const Thread&) { return at; };
  }
  std::size_t read = 0;
  const auto value = static_cast<std::uint64_t>(std::stoll(text, &read));
  if (read != text.size()) Unknown(text);
  return [value](const Thread&) { return value; };
}

// [register], [register+number] or [parameter+number].
PtxKernel::Operand PtxKernel::Address(const std::string& text) {
  const std::string inner = text.substr(1, text.size() - 2);
  const std::size_t plus = inner.find('+');
  const Operand base = Value(inner.substr(0, plus));
  const std::uint64_t more = plus == inner.npos ? 0 : static_cast<std::uint64_t>(std::stoll(inner.substr(plus + 1)));
  return [base, more](const Thread& thread) { return base(thread) + more; };
}

// ld.global.nc.u32: from the module's arrays alone.
PtxKernel::Step PtxKernel::CompileConstant(const std::vector<std::string>& operands) {
  const auto to = static_cast<std::size_t>(Register(operands[0]));
  const Operand address = Address(operands[1]);
  return [this, to, address](Thread& thread) {
    const std::uint64_t at = address(thread);
    for (const auto& [name, bytes] : constants_) {
      const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
      if (at % 4 != 0 || at < begin || at + 4 > begin + bytes.size()) continue;
      std::uint32_t value = 0;
      std::memcpy(&value, bytes.data() + (at - begin), 4);
      thread.registers[to] = value;
      return;
    }
    throw std::runtime_error("bad access to the module's constants");
  };
}

PtxKernel::Step PtxKernel::CompileAccess(const std::vector<std::string>& name,
                                         const std::vector<std::string>& operands) {
  const bool load = name[0] == "ld";
  const bool parameter = name[1] == "param";
  const bool pair = name[name.size() - 2] == "v2";
  const std::size_t bytes = BytesOf(name.back());
  if (name.size() != 2U + (parameter ? 1 : 0) + (pair ? 1 : 0)) Unknown(name[0] + "." + name[1]);
  const Operand address = Address(operands[load ? 1 : 0]);
  std::string values = operands[load ? 0 : 1];
  if (pair) values = values.substr(1, values.size() - 2);
  const std::vector<std::string> registers = Split(values, ',');
  const auto first = static_cast<std::size_t>(Register(registers[0]));
  const auto second = static_cast<std::size_t>(Register(registers[pair ? 1 : 0]));
  if (parameter) {
    return [=](Thread& thread) {
      const std::uint64_t at = address(thread);
      thread.registers[first] = thread.Parameter(at, bytes);
      if (pair) thread.registers[second] = thread.Parameter(at + bytes, bytes);
    };
  }
  if (pair && bytes != 8) Unknown("v2 of " + name.back());
  if (pair && load) {
    return [=](Thread& thread) {
      const kernels::Word word = thread.memory.load_word(address(thread));
      thread.registers[first] = word.low;
      thread.registers[second] = word.high;
    };
  }
  if (pair) {
    return [=](Thread& thread) {
      thread.memory.store_word(address(thread), {thread.registers[first], thread.registers[second]});
    };
  }
  if (load) {
    return [=](Thread& thread) { thread.registers[first] = thread.memory.load(address(thread), bytes); };
  }
  return [=](Thread& thread) { thread.memory.store(address(thread), bytes, Truncate(thread.registers[first], bytes)); };
}

PtxKernel::Step PtxKernel::Compile(const std::vector<std::string>& name, const std::vector<std::string>& operands) {
  const std::string& op = name[0];
  if (name == std::vector<std::string>{"ld", "global", "nc", "u32"}) return CompileConstant(operands);
  if (op == "ld" || op == "st") return CompileAccess(name, operands);
  if (op == "ret") return [](Thread& thread) { thread.returned = true; };
  if (op == "bra") {
    const std::size_t target = labels_.at(operands[0]);
    return [target](Thread& thread) { thread.next = target; };
  }
  const auto to = static_cast<std::size_t>(Register(operands[0]));
  std::vector<Operand> in;
  for (std::size_t i = 1; i < operands.size(); ++i) in.push_back(Value(operands[i]));
  const std::string& type = name.back();
  // A predicate is 0 or 1.
  const std::size_t bytes = type == "pred" ? 8 : BytesOf(type);
  const auto from = [bytes](const Operand& operand, const Thread& thread) { return Truncate(operand(thread), bytes); };
  if (op == "mov") {
    return [=](Thread& thread) { thread.registers[to] = from(in[0], thread); };
  }
  if (op == "cvt") {
    if (name.size() != 3 || name[1][0] != 'u' || type[0] != 'u') Unknown("cvt." + name[1] + "." + type);
    const std::size_t wide = BytesOf(name[1]);
    return [=](Thread& thread) { thread.registers[to] = Truncate(from(in[0], thread), wide); };
  }
  if (op == "not") {
    const bool predicate = type == "pred";
    return [=](Thread& thread) {
      thread.registers[to] = predicate ? 1 - in[0](thread) : Truncate(~from(in[0], thread), bytes);
    };
  }
  if (op == "neg") {
    return [=](Thread& thread) { thread.registers[to] = Truncate(0 - from(in[0], thread), bytes); };
  }
  if (op == "shr" && type == "s32") {
    return [=](Thread& thread) {
      const auto by = std::min<std::uint64_t>(Truncate(in[1](thread), 4), 31);
      thread.registers[to] = Truncate(static_cast<std::uint64_t>(Signed(from(in[0], thread), 4) >> by), 4);
    };
  }
  if (op == "selp") {
    return [=](Thread& thread) { thread.registers[to] = from(in[2](thread) != 0 ? in[0] : in[1], thread); };
  }
  if (op == "setp") {
    const std::string how = name[1];
    const bool is_signed = type[0] == 's';
    return [=](Thread& thread) {
      thread.registers[to] = Compare(how, is_signed, from(in[0], thread), from(in[1], thread), bytes) ? 1 : 0;
    };
  }
  if (op == "shf") {
    if (name != std::vector<std::string>{"shf", "l", "wrap", "b32"}) Unknown("shf");
    return [=](Thread& thread) {
      const std::uint64_t both = from(in[1], thread) << 32 | from(in[0], thread);
      thread.registers[to] = (both << (in[2](thread) % 32)) >> 32;
    };
  }
  const Function function = Arithmetic(op);
  const bool is_unsigned = type[0] != 's';
  if (function == nullptr || ((op == "div" || op == "min" || op == "max" || op == "shr") && !is_unsigned)) {
    Unknown(op + "." + type);
  }
  const bool wide = name[1] == "wide";
  if (op == "mul" && !wide && name[1] != "lo") Unknown("mul." + name[1]);
  if (wide && (!is_unsigned || bytes != 4)) Unknown("mul.wide." + type);
  const bool shift = op == "shl" || op == "shr";
  return [=](Thread& thread) {
    const std::uint64_t second = shift ? in[1](thread) : from(in[1], thread);
    thread.registers[to] = Truncate(function(from(in[0], thread), second, bytes), wide ? 8 : bytes);
  };
}

void PtxKernel::Run(const std::byte* parameter, std::uint32_t thread, std::uint32_t block, std::uint32_t blocks,
                    const Memory& memory) const {
  Thread running{.memory = memory,
                 .parameter = parameter,
                 .parameter_bytes = parameter_bytes_,
                 .tid = thread % block,
                 .ntid = block,
                 .ctaid = thread / block,
                 .nctaid = blocks,
                 .registers = std::vector<std::uint64_t>(registers_.size())};
  while (!running.returned) {
    const Instruction& instruction = instructions_.at(running.next++);
    if (instruction.guard >= 0 &&
        (running.registers[static_cast<std::size_t>(instruction.guard)] != 0) != instruction.guard_value) {
      continue;
    }
    instruction.step(running);
  }
}

}  // namespace cairn
