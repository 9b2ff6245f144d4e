// Fuzzer of etcd's responses: each part of the input is one response, in order. A standby that reads and a
// leader that writes must get data or an error.
#include <grpcpp/grpcpp.h>

#include <mutex>

#include "base/check.h"
#include "base/log.h"
#include "coordinator/store/etcd_store.h"
#include "tests/fuzzers/cases.h"

namespace fsdpd::fuzz {
namespace {

namespace etcd = etcdserverpb;

class Scripted : public etcd::KV::Service, public etcd::Lease::Service {
 public:
  void Begin(std::vector<std::string> answers) {
    std::lock_guard<std::mutex> lock(mutex_);
    answers_ = std::move(answers);
    next_ = 0;
  }
  grpc::Status Range(grpc::ServerContext*, const etcd::RangeRequest*, etcd::RangeResponse* answer) override {
    return Answer(answer);
  }
  grpc::Status Txn(grpc::ServerContext*, const etcd::TxnRequest*, etcd::TxnResponse* answer) override {
    return Answer(answer);
  }
  grpc::Status LeaseGrant(grpc::ServerContext*, const etcd::LeaseGrantRequest*,
                          etcd::LeaseGrantResponse* answer) override {
    answer->set_id(7);
    return grpc::Status::OK;
  }
  grpc::Status LeaseRevoke(grpc::ServerContext*, const etcd::LeaseRevokeRequest*,
                           etcd::LeaseRevokeResponse*) override {
    return grpc::Status::OK;
  }

 private:
  grpc::Status Answer(google::protobuf::Message* answer) {
    std::lock_guard<std::mutex> lock(mutex_);
    // Not UNAVAILABLE, which is retried.
    if (next_ == answers_.size()) return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "no more");
    if (!answer->ParseFromString(answers_[next_++])) answer->Clear();
    return grpc::Status::OK;
  }
  std::mutex mutex_;
  std::vector<std::string> answers_;
  size_t next_ = 0;
};

class Etcd {
 public:
  Etcd() {
    TakeLog([](Severity, absl::string_view) {});
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(static_cast<etcd::KV::Service*>(&service));
    builder.RegisterService(static_cast<etcd::Lease::Service*>(&service));
    server_ = builder.BuildAndStart();
    EtcdOptions options;
    options.members = {"127.0.0.1:" + std::to_string(port)};
    client = *EtcdClient::Make(options, absl::UnixEpoch());
  }
  Scripted service;
  std::unique_ptr<EtcdClient> client;

 private:
  std::unique_ptr<grpc::Server> server_;
};

void Read(EtcdClient* client) {
  EtcdJobs jobs(client, "/fsdpd/");
  int64_t revision = 0;
  jobs.ReadSchema().status().IgnoreError();
  const auto index = jobs.Load(&revision);
  EtcdSelection selection;
  selection.ids = {{0, "j"}, {0, "k"}};
  JobQuery query;
  query.limit = 10;
  query.max_bytes = 1'000'000;
  if (index.ok()) selection = index->IdsFor(query);
  jobs.Read(selection, query).status().IgnoreError();
  jobs.Get("j").status().IgnoreError();
  jobs.Nodes().status().IgnoreError();
  jobs.Cordons().status().IgnoreError();
}

void Lead(EtcdClient* client) {
  Leadership::Options options;
  options.prefix = "/fsdpd/";
  options.address = "a:1";
  options.lease = absl::Hours(1);
  auto taken = Leadership::TryTake(client, options, [] {});
  if (!taken.ok() || *taken == nullptr) return;
  auto store = EtcdStore::Open(client, "/fsdpd/", taken->get());
  if (!store.ok()) return;
  v1::Job job;
  job.set_id("j");
  (*store)->Insert(job).status().IgnoreError();
  (*store)->Update(job).IgnoreError();
  (*store)->LiveJobs().status().IgnoreError();
}

}  // namespace
}  // namespace fsdpd::fuzz

// gRPC's threads hold memory across cases.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }

// The two response types are similar; fields of one are unknown fields of the other.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  if (seed % 2 == 0)
    return fsdpd::fuzz::Mutate(etcdserverpb::TxnResponse::default_instance(), data, size, max_size, seed);
  return fsdpd::fuzz::Mutate(etcdserverpb::RangeResponse::default_instance(), data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto& etcd = *new fsdpd::fuzz::Etcd;
  const std::vector<std::string> answers = fsdpd::fuzz::SplitParts(data, size);
  if (answers.size() > 20) return 0;
  etcd.service.Begin(answers);
  fsdpd::fuzz::Read(etcd.client.get());
  etcd.service.Begin(answers);
  fsdpd::fuzz::Lead(etcd.client.get());
  return 0;
}
