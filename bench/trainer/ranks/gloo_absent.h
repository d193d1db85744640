#pragma once

#include <chrono>
#include <string>
#include <vector>

// PyTorch's packages contain gloo, but not its headers. This stands in for each of those that c10d's header includes:
// it only points to such objects, and so do we. Nothing here may be made, or called.
namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

namespace rendezvous {

class Store {
 public:
  virtual ~Store();
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) = 0;
};

}  // namespace rendezvous

namespace transport {

class Device;
class UnboundBuffer;

}  // namespace transport
}  // namespace gloo
