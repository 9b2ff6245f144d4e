// The flags that say where a state in etcd is, and how etcd is reached: --store, --etcd-ca, --etcd-cert,
// --etcd-key. The coordinator, its backup and its restore have them alike.
#pragma once

#include <absl/status/status.h>

#include <string>

#include "coordinator/store/etcd_client.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace fsdpd {

struct EtcdFlags {
  std::string store;  // As it was given; "": the state is elsewhere.
  EtcdOptions etcd;
  std::string prefix;  // "/fsdpd/"
};

// "etcd://HOST:PORT,HOST:PORT/PREFIX". INVALID_ARGUMENT.
absl::Status ParseStore(const std::string& store, EtcdFlags* flags);

// `about`: what --store is for. Its option.
CLI::Option* DeclareStore(CLI::App* app, const std::string& about, EtcdFlags* flags);
void DeclareEtcdFiles(CLI::App* app, CLI::Option* store, EtcdFlags* flags);

// What the flags lack together, or "".
std::string WhyNotReached(const EtcdFlags& flags);

}  // namespace fsdpd
