#include "coordinator/serve/etcd_flags.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include <CLI/CLI.hpp>
#include <utility>

#include "base/net/address.h"

namespace fsdpd {

absl::Status ParseStore(const std::string& store, EtcdFlags* flags) {
  absl::string_view rest = store;
  if (!absl::ConsumePrefix(&rest, "etcd://"))
    return absl::InvalidArgumentError(absl::StrCat("'", store, "' does not start with etcd://"));
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(rest, absl::MaxSplits('/', 1));
  flags->etcd.members = absl::StrSplit(parts.first, ',');
  for (const std::string& member : flags->etcd.members) {
    if (const absl::StatusOr<HostPort> read = ParseHostPort(member); !read.ok()) return read.status();
  }
  const std::string name(absl::StripSuffix(parts.second, "/"));
  flags->prefix = name.empty() ? "/fsdpd/" : absl::StrCat("/", name, "/");
  return absl::OkStatus();
}

CLI::Option* DeclareStore(CLI::App* app, const std::string& about, EtcdFlags* flags) {
  return app->add_option("--store", flags->store, absl::StrCat(about, "; default PREFIX: fsdpd"))
      ->type_name("etcd://HOST:PORT,HOST:PORT/PREFIX")
      ->check([flags](const std::string& text) { return std::string(ParseStore(text, flags).message()); });
}

void DeclareEtcdFiles(CLI::App* app, CLI::Option* store, EtcdFlags* flags) {
  const auto file = [&](const char* name, std::string* path, const char* about) {
    app->add_option(name, *path, about)->type_name("FILE")->needs(store);
  };
  file("--etcd-ca", &flags->etcd.tls.trusted,
       "Trust these CA certificates (PEM) for etcd; default: plaintext");
  file("--etcd-cert", &flags->etcd.tls.certificate, "Use this client certificate (PEM) for etcd");
  file("--etcd-key", &flags->etcd.tls.key,
       "Use this private key of --etcd-cert; TLS files are reread on change");
}

std::string WhyNotReached(const EtcdFlags& flags) {
  const TlsFiles& tls = flags.etcd.tls;
  if (tls.certificate.empty() != tls.key.empty()) return "--etcd-cert and --etcd-key require each other";
  if (!tls.certificate.empty() && !tls.given()) return "--etcd-cert requires --etcd-ca";
  for (const std::string& member : flags.etcd.members) {
    const absl::StatusOr<HostPort> address = ParseHostPort(member);
    if (tls.given() || (address.ok() && IsLoopback(*address))) continue;
    return absl::StrCat("--store: remote etcd member ", member, " requires TLS; set --etcd-ca");
  }
  return "";
}

}  // namespace fsdpd
