// Coordinator for tests: a gRPC server on loopback whose agent stream is driven by the test. It answers
// Register with Welcome and serves rendezvous itself; all other messages are sent and awaited by the test.
//
// Thread-safe. Waits fail the test after kPatience, so that a hang has a cause.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "proto/fsdpd/v1/agent.grpc.pb.h"

namespace fsdpd {

class ScriptedCoordinator : public v1::AgentLink::Service {
 public:
  using Matcher = std::function<bool(const v1::AgentMessage&)>;

  ScriptedCoordinator();
  ~ScriptedCoordinator() override;

  const std::string& address() const { return address_; }

  void Refuse(grpc::Status status);  // Rejects every Attach from now on; OK ends it.
  void WithholdWelcome();            // From the next Attach on.
  void HoldRendezvous(bool hold);    // Gets are not answered while held.
  void ForgetRendezvous();           // Like a restarted coordinator.
  void SetRendezvous(const std::string& key, const std::string& value);  // Like a rank of another node.

  // Ends the stream like a coordinator that crashes; Attach is rejected until Resume.
  void Disconnect();
  void Resume();

  void Send(v1::CoordinatorMessage message);  // On the current stream, with its generation.
  void SendWithGeneration(v1::CoordinatorMessage message, int64_t stream_generation);

  // The first matching message of all received so far and later. Does not consume it.
  v1::AgentMessage Await(const Matcher& matches);
  v1::Register AwaitRegister(int count);  // The count-th one since the start, from 1.
  v1::RankUpdate AwaitExit(const std::string& job, int attempt, int rank);
  v1::RankUpdate AwaitReady(const std::string& job, int attempt, int rank);
  void AwaitStopped(const std::string& job, int attempt);
  bool AwaitEnd();  // End of the first stream; false if it was cancelled.
  int Count(const Matcher& matches);
  std::vector<v1::AgentMessage> Received();

  grpc::Status Attach(grpc::ServerContext* context,
                      grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::AgentMessage>* stream) override;

 private:
  using Stream = grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::AgentMessage>;

  void Take(const v1::AgentMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Answer(Stream* stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  CondVar changed_;
  grpc::Status refusal_ ABSL_GUARDED_BY(mutex_);
  bool hold_rendezvous_ ABSL_GUARDED_BY(mutex_) = false;
  bool withhold_welcome_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<bool> ended_in_order_ ABSL_GUARDED_BY(mutex_);  // One entry per ended stream.
  int64_t stream_generation_ ABSL_GUARDED_BY(mutex_) = 0;
  // Written under the lock, which is acceptable in a test.
  Stream* stream_ ABSL_GUARDED_BY(mutex_) = nullptr;
  grpc::ServerContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::vector<v1::AgentMessage> received_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> store_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::RendezvousGet> gets_ ABSL_GUARDED_BY(mutex_);
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace fsdpd
