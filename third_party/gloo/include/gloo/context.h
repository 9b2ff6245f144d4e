#pragma once

#include <chrono>
#include <memory>

namespace gloo {
namespace transport {
class Pair;
}

class Context {
 public:
  std::unique_ptr<transport::Pair>& getPair(int rank);  // Null for the own rank.
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
