// Test double of an agent: a real gRPC client of AgentLink that sends scripted messages instead of running
// ranks.
//
// One test thread uses an agent; an internal thread reads the stream. Await...() times out after 20 s, so
// that a test fails instead of hanging.
#pragma once

#include <absl/time/time.h>
#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "coordinator/job/attempt_ref.h"
#include "proto/fsdpd/v1/agent.grpc.pb.h"

namespace fsdpd {

class ScriptedAgent {
 public:
  struct Options {
    std::string node;
    int slots = 1;
    std::string instance = "first";
    std::vector<v1::HostedAttempt> hosted;
    int64_t memory_bytes_per_slot = 0;
    bool evidence = false;  // Registers as an agent that sends evidence of stalled ranks.
  };
  // Registers immediately; AwaitWelcome() returns whether the coordinator accepted it.
  ScriptedAgent(const std::string& address, const Options& options);
  ~ScriptedAgent();

  bool AwaitWelcome();
  // The next message of that kind; drops others before it. nullopt if the stream ended or the time is up.
  std::optional<v1::CoordinatorMessage> Await(v1::CoordinatorMessage::BodyCase kind);
  grpc::Status AwaitEnd();  // Status with which the coordinator ended the stream.
  bool HasReceived(v1::CoordinatorMessage::BodyCase kind);  // Whether the inbox has such a message.

  void Send(v1::AgentMessage message);  // Sets the stream's generation unless the message has one.
  void Ready(const AttemptRef& ref, int rank);
  void Step(const AttemptRef& ref, int64_t step, double loss);
  void Saved(const AttemptRef& ref, int64_t step);
  void Exit(const AttemptRef& ref, int rank, int code, const std::string& error = "",
            absl::Duration age = absl::ZeroDuration());
  void Stopped(const AttemptRef& ref);
  void SetKey(const AttemptRef& ref, const std::string& key, const std::string& value);
  void GetKey(const AttemptRef& ref, const std::string& key, int64_t request);

  int64_t stream_generation() const { return stream_generation_; }

 private:
  void ReadAll();

  grpc::ClientContext context_;
  std::unique_ptr<v1::AgentLink::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AgentMessage, v1::CoordinatorMessage>> stream_;
  std::thread reader_;
  int64_t stream_generation_ = 0;
  Mutex mutex_;
  CondVar changed_;
  std::deque<v1::CoordinatorMessage> inbox_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status end_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
