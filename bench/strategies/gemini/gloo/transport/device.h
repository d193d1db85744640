#pragma once

namespace gloo::transport {

// See context.h.
class Device;
class UnboundBuffer;

}  // namespace gloo::transport
