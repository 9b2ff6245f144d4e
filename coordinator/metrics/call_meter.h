// Metrics of one call of the public API: the duration of a unary call, or one open stream.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>

#include "coordinator/metrics/meters.h"

namespace fsdpd {

class CallMeter {
 public:
  // `method`: a method of v1::Coordinator, such as "GetJob"; it and `meters` must outlive this object.
  CallMeter(Meters* meters, const char* method);
  void End(const grpc::Status& status);  // Once.

 private:
  Meters* const meters_;
  const char* const method_;
  const bool streams_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace fsdpd
