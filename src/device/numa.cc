#include "device/numa.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>

namespace cairn {
namespace {

// As the kernel writes them: "0-3,8".
std::vector<int> ReadCpuList(std::istream& list) {
  std::vector<int> cpus;
  int first = 0;
  while (list >> first) {
    int last = first;
    if (list.peek() == '-') list.ignore() >> last;
    for (int cpu = first; cpu <= std::min(last, CPU_SETSIZE - 1); ++cpu) cpus.push_back(cpu);
    list.ignore();
  }
  return cpus;
}

}  // namespace

std::optional<NumaNode> NumaNodeOfPci(std::string bus_id, const std::string& root) {
  std::transform(bus_id.begin(), bus_id.end(), bus_id.begin(), [](unsigned char c) { return std::tolower(c); });
  std::ifstream file(root + "/sys/bus/pci/devices/" + bus_id + "/numa_node");
  int node = 0;
  if (!(file >> node) || node < 0) return std::nullopt;  // -1: the firmware does not say, or there is only one.
  std::ifstream cpus(root + "/sys/devices/system/node/node" + std::to_string(node) + "/cpulist");
  return NumaNode{.number = node, .cpus = ReadCpuList(cpus)};
}

bool PreferNode(MutableBytes memory, int node) {
  constexpr unsigned kBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, 1024 / kBits> nodes{};  // As many as any kernel has.
  const auto number = static_cast<unsigned>(node);
  if (number >= nodes.size() * kBits) return false;  // Negative ones too.
  nodes[number / kBits] = 1UL << (number % kBits);
  // The kernel reads one bit less than it is told.
  return ::syscall(SYS_mbind, memory.data(), memory.size(), MPOL_PREFERRED, nodes.data(), nodes.size() * kBits + 1,
                   MPOL_MF_MOVE) == 0;
}

}  // namespace cairn
