#include "device/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>

namespace cairn {

std::optional<int> NumaNodeOfPci(std::string bus_id, const std::string& root) {
  std::transform(bus_id.begin(), bus_id.end(), bus_id.begin(), [](unsigned char c) { return std::tolower(c); });
  std::ifstream file(root + "/sys/bus/pci/devices/" + bus_id + "/numa_node");
  int node = 0;
  if (!(file >> node) || node < 0) return std::nullopt;  // -1: the firmware does not say, or there is only one.
  return node;
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
