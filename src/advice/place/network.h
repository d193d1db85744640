#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace cairn {

/// What a network can do between devices, and which of them fail together. A device takes one rank.
///
/// Every pair of devices has a delay and a rate of its own, the same in both directions: transfers of different pairs
/// do not slow each other down.
class Network {
 public:
  struct Link {
    double delay_seconds = 0;
    double bytes_per_second = 0;
  };

  /// All links have no delay and no limit. `domains`: of each device, an index of `domain_names`.
  Network(std::vector<std::string> names, std::vector<std::size_t> domains, std::vector<std::string> domain_names)
      : names_(std::move(names)),
        domains_(std::move(domains)),
        domain_names_(std::move(domain_names)),
        costs_(names_.size() * names_.size()) {}

  /// Both directions. The rate is above 0.
  void SetLink(std::size_t from, std::size_t to, Link link) {
    const Cost cost{.delay = link.delay_seconds, .seconds_per_byte = 1 / link.bytes_per_second};
    costs_[from * names_.size() + to] = costs_[to * names_.size() + from] = cost;
  }

  [[nodiscard]] std::size_t devices() const { return names_.size(); }
  [[nodiscard]] const std::string& name(std::size_t device) const { return names_[device]; }
  /// Devices of one failure domain are lost together.
  [[nodiscard]] std::size_t domain(std::size_t device) const { return domains_[device]; }
  [[nodiscard]] const std::vector<std::string>& domain_names() const { return domain_names_; }
  /// How long it takes to send that much.
  [[nodiscard]] double Seconds(std::size_t from, std::size_t to, double bytes) const {
    const Cost& cost = costs_[from * names_.size() + to];
    return cost.delay + bytes * cost.seconds_per_byte;
  }

 private:
  struct Cost {
    double delay = 0;
    double seconds_per_byte = 0;
  };

  std::vector<std::string> names_;
  std::vector<std::size_t> domains_;
  std::vector<std::string> domain_names_;
  std::vector<Cost> costs_;
};

}  // namespace cairn
