#include "coordinator/web/server_tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>

namespace fsdpd {
namespace {

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;

Bio BioOf(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free);
}

// The files were validated when they were read (tls_files.h).
bool UseCertificate(const TlsIdentity& identity, SSL_CTX* context) {
  const Bio chain = BioOf(identity.certificate), key = BioOf(identity.key);
  std::unique_ptr<X509, decltype(&X509_free)> own(PEM_read_bio_X509(chain.get(), nullptr, nullptr, nullptr),
                                                  X509_free);
  std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> secret(
      PEM_read_bio_PrivateKey(key.get(), nullptr, nullptr, nullptr), EVP_PKEY_free);
  if (own == nullptr || secret == nullptr || SSL_CTX_use_certificate(context, own.get()) != 1 ||
      SSL_CTX_use_PrivateKey(context, secret.get()) != 1) {
    return false;
  }
  while (X509* next = PEM_read_bio_X509(chain.get(), nullptr, nullptr, nullptr)) {
    if (SSL_CTX_add0_chain_cert(context, next) != 1) {
      X509_free(next);
      return false;
    }
  }
  return true;
}

std::shared_ptr<SSL_CTX> ContextOf(const TlsIdentity& identity) {
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (context == nullptr) return nullptr;
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION);
  const bool usable = UseCertificate(identity, context.get());
  ERR_clear_error();
  return usable ? context : nullptr;
}

}  // namespace

std::shared_ptr<SSL_CTX> ServerTls::Context() {
  std::optional<TlsIdentity> newest = port_->Newest();
  if (!newest.has_value()) return nullptr;
  MutexLock lock(&mutex_);
  if (!used_.has_value() || !used_->SameAs(*newest)) {
    context_ = ContextOf(*newest);
    used_ = std::move(newest);
  }
  return context_;
}

}  // namespace fsdpd
