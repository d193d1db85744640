#pragma once

#include <chrono>

namespace gloo {

// PyTorch's packages come with gloo inside, and without its headers. These five stand in for what c10d's own header
// names of it: it only points to such objects, and so do we. Nothing here may be made, or called.
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
