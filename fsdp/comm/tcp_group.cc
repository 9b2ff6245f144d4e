#include "fsdp/comm/gloo_group.h"

#include <absl/strings/cord.h>
#include <absl/strings/str_format.h>
#include <gloo/transport/tcp/pair.h>
#include <gloo/transport/tcp/unbound_buffer.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "base/check.h"
#include "fsdp/torch/torch_status.h"

namespace fsdpd {
namespace {

// Our store as Gloo wants it. Gloo throws away what went wrong; error() keeps it.
class StoreForGloo : public c10d::Store {
 public:
  StoreForGloo(fsdpd::Store* store, std::string name, absl::Duration timeout)
      : c10d::Store(absl::ToChronoMilliseconds(timeout)), store_(store), name_(std::move(name)) {}

  const absl::Status& error() const { return error_; }

  using c10d::Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    Check(store_->Set(Prefixed(key), std::string(value.begin(), value.end())));
  }

  std::vector<uint8_t> get(const std::string& key) override { return Get(key, timeout_); }

  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    for (const std::string& key : keys) Get(key, std::min(timeout, timeout_));
  }

  bool check(const std::vector<std::string>& keys) override {
    return std::all_of(keys.begin(), keys.end(), [this](const std::string& key) {
      return store_->Get(Prefixed(key), absl::ZeroDuration()).ok();
    });
  }

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<StoreForGloo>(store_, name_, absl::FromChrono(timeout_));
  }

  // Values are written once.
  int64_t add(const std::string& key, int64_t) override { Refuse("add", key); }
  bool deleteKey(const std::string& key) override { Refuse("deleteKey", key); }
  int64_t getNumKeys() override { Refuse("getNumKeys", ""); }

 private:
  std::string Prefixed(const std::string& key) const { return name_ + "/" + key; }

  std::vector<uint8_t> Get(const std::string& key, std::chrono::milliseconds timeout) {
    const auto value = store_->Get(Prefixed(key), absl::FromChrono(timeout));
    Check(value.status());
    return {value->begin(), value->end()};
  }

  void Check(const absl::Status& status) {
    if (status.ok()) return;
    error_ = status;
    throw std::runtime_error(status.ToString());
  }

  [[noreturn]] static void Refuse(const char* operation, const std::string& key) {
    throw std::logic_error(absl::StrFormat("the rendezvous store has no %s (%s)", operation, key));
  }

  fsdpd::Store* const store_;
  const std::string name_;
  absl::Status error_;
};

// Gloo writes to sockets without MSG_NOSIGNAL, so a peer that left would kill this process by SIGPIPE before
// the error is seen. Python ignores the signal for all who use LibTorch from there; a handler somebody set is
// kept.
void IgnoreBrokenPipes() {
  struct sigaction current;
  if (sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL) signal(SIGPIPE, SIG_IGN);
}

// LibTorch 2.11 records every collective in one map for the whole process and inserts into it without a lock,
// so two communicators whose first operations meet on two threads (gather and reduce do) can crash the rank.
// The variable is read when the first operation is recorded.
void TurnOffTorchRecorder() {
  static const int once = setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  FSDPD_CHECK(once == 0);
}

// Exchanges have the numbers below.
constexpr uint64_t kFirstMessage = uint64_t{1} << 48;

gloo::transport::tcp::UnboundBuffer* Of(const std::unique_ptr<gloo::transport::UnboundBuffer>& buffer) {
  return static_cast<gloo::transport::tcp::UnboundBuffer*>(buffer.get());
}

}  // namespace

GlooGroup::Buffer GlooGroup::MakeBuffer(Slice slice) {
  return contexts_.front()->createUnboundBuffer(slice.data, static_cast<size_t>(slice.bytes));
}

void GlooGroup::Exchange(const SliceOf& outgoing, const SliceOf& incoming, Slice target) {
  const uint64_t slot = ++exchanges_;
  const std::chrono::milliseconds timeout = getOptions()->timeout;
  const Buffer to = MakeBuffer(target);
  std::vector<Buffer> from;
  int expected = 0;
  for (int step = 1; step < getSize(); ++step) {
    const int peer = (getRank() + step) % getSize();  // Not all to rank 0 first.
    const Slice in = incoming(peer), out = outgoing(peer);
    if (in.bytes > 0) {
      Of(to)->recv(peer, slot, in.data - target.data, in.bytes);
      ++expected;
    }
    if (out.bytes > 0) {
      from.push_back(MakeBuffer(out));
      Of(from.back())->send(peer, slot, 0, out.bytes);
    }
  }
  for (int i = 0; i < expected; ++i) Of(to)->waitRecv(nullptr, timeout);
  for (const Buffer& buffer : from) Of(buffer)->waitSend(nullptr, timeout);
}

void GlooGroup::SendTo(int peer, Slice slice) {
  const Buffer buffer = MakeBuffer(slice);
  Of(buffer)->send(peer, kFirstMessage + sent_[peer]++, 0, slice.bytes);
  Of(buffer)->waitSend(nullptr, getOptions()->timeout);
}

void GlooGroup::ReceiveFrom(int peer, Slice slice) {
  const Buffer buffer = MakeBuffer(slice);
  Of(buffer)->recv(peer, kFirstMessage + received_[peer]++, 0, slice.bytes);
  Of(buffer)->waitRecv(nullptr, getOptions()->timeout);
}

void GlooGroup::Break(const std::string& reason) {
  for (const auto& context : contexts_) {
    for (int peer = 0; peer < getSize(); ++peer) {
      if (peer == getRank()) continue;
      static_cast<gloo::transport::tcp::Pair*>(context->getPair(peer).get())->signalExceptionExternal(reason);
    }
  }
}

absl::StatusOr<c10::intrusive_ptr<GlooGroup>> ConnectGlooGroup(const CommunicatorOptions& options,
                                                               Store* store) {
  IgnoreBrokenPipes();
  TurnOffTorchRecorder();
  auto adapter = c10::make_intrusive<StoreForGloo>(store, options.name, options.rendezvous_timeout);
  c10::intrusive_ptr<GlooGroup> group;
  const absl::Status status = CatchTorch([&] {
    auto gloo = GlooGroup::Options::create(absl::ToChronoMilliseconds(options.rendezvous_timeout));
    gloo->devices = {GlooGroup::createDeviceForHostname(options.bind_address)};
    gloo->threads = 1;  // One operation at a time.
    group = c10::make_intrusive<GlooGroup>(adapter, options.rank, options.size, gloo);
    group->setTimeout(absl::ToChronoMilliseconds(options.operation_timeout));
    return absl::OkStatus();
  });
  if (!adapter->error().ok()) return adapter->error();
  if (status.ok()) return group;
  absl::Status failed = absl::UnavailableError(
      absl::StrFormat("connecting group '%s' on rank %d of %d at %s: %s", options.name, options.rank,
                      options.size, options.bind_address, status.message()));
  // Of a thread that the system did not start, say.
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { failed.SetPayload(url, payload); });
  return failed;
}

}  // namespace fsdpd
