#pragma once

#include <exception>
#include <string>

#include "gloo/transport/pair.h"

namespace gloo {
namespace transport {
namespace tcp {

// The connection to one peer. Its first base is transport::Pair, at offset 0, which is all that a cast needs.
class Pair : public ::gloo::transport::Pair {
 public:
  // Fails every operation that waits on this connection and closes it. Thread-safe; later calls change
  // nothing.
  std::exception_ptr signalExceptionExternal(const std::string& message);
};

}  // namespace tcp
}  // namespace transport
}  // namespace gloo
