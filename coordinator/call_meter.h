// Tells the meters of a call of the public API: how long it took, or, of a stream, that it is open.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>

#include "coordinator/meters.h"

namespace fsdpd {

class CallMeter {
 public:
  // `method`: of v1::Coordinator, "GetJob"; it and `meters` outlive this.
  CallMeter(Meters* meters, const char* method);
  void End(const grpc::Status& status);  // Once.

 private:
  Meters* const meters_;
  const char* const method_;
  const bool streams_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace fsdpd
