#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

#include "gloo/transport/device.h"

namespace gloo {
namespace transport {
class Pair;
}

class Context {
 public:
  std::unique_ptr<transport::Pair>& getPair(int rank);  // Null for the own rank.
  std::unique_ptr<transport::UnboundBuffer> createUnboundBuffer(void* data, size_t bytes);
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
