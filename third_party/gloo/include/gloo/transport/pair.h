#pragma once

namespace gloo {
namespace transport {

class Pair {
 public:
  virtual ~Pair() = 0;
};

}  // namespace transport
}  // namespace gloo
