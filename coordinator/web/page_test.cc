// End-to-end tests of the web server in a complete coordinator in one process.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "base/api/bearer_token.h"
#include "base/temp_dir.h"
#include "coordinator/access/api_method.h"
#include "coordinator/access/peer.h"
#include "coordinator/serve/server.h"
#include "coordinator/store/sqlite_store.h"
#include "coordinator/testing/http_client.h"
#include "coordinator/testing/tiny_spec.h"
#include "coordinator/web/web_api.h"
#include "coordinator/web/web_routes.h"
#include "proto/fsdpd/v1/coordinator.grpc.pb.h"

namespace fsdpd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kHost[] = "Host: localhost\r\n";

// `tokens`: lines of a token file; empty: no authentication.
class Page {
 public:
  explicit Page(const std::string& tokens = "") {
    options_.listen = options_.web_listen = "127.0.0.1:0";
    std::ofstream(dir_.File("tokens")) << tokens;
    ServerFiles files = *Server::OpenFiles(options_);
    if (!tokens.empty()) files.security.tokens = *TokenStore::Open(dir_.File("tokens"), options_.clock);
    files.security.audit = *AuditLog::Open(audit(), 1 << 20);
    auto server = Server::Start(options_, files, [this] { return SqliteStore::Open(dir_.File("state")); });
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  // Stops the server first, so that the log is complete.
  std::string AuditAfterEnd() {
    server_.reset();
    std::ifstream file(audit());
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  std::string Get(const std::string& target, const std::string& headers = kHost) {
    return HttpClient::Get(HttpClient::PortOf(server_->page_url()), target, headers);
  }
  std::string GetAs(const std::string& token, const std::string& target) {
    return Get(target, absl::StrCat(kHost, "Authorization: Bearer ", token, "\r\n"));
  }
  void AskThroughGrpc(const std::map<std::string, std::string>& metadata) {
    grpc::ClientContext context;
    for (const auto& [name, value] : metadata) context.AddMetadata(name, value);
    v1::ListJobsResponse response;
    EXPECT_FALSE(Stub()->ListJobs(&context, {}, &response).ok());
  }
  v1::Job Submit() {
    grpc::ClientContext context;
    v1::SubmitJobRequest request;
    *request.mutable_spec() = TinySpec();
    v1::SubmitJobResponse response;
    const grpc::Status status = Stub()->SubmitJob(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.job();
  }

 private:
  std::unique_ptr<v1::Coordinator::Stub> Stub() {
    return v1::Coordinator::NewStub(
        grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }
  std::string audit() const { return dir_.File("audit.jsonl"); }

  const TempDir dir_;
  ServerOptions options_;
  std::unique_ptr<Server> server_;
};

TEST(Page, ServesJobsNodesAndVersion) {
  Page page;
  const v1::Job job = page.Submit();
  const std::string list = page.Get("/api/ListJobs?q=%7B%22page_size%22%3A1%7D");
  EXPECT_THAT(list, AllOf(StartsWith("HTTP/1.1 200 OK"), HasSubstr("Content-Type: application/json")));
  EXPECT_THAT(list, AllOf(HasSubstr(job.id()), HasSubstr("JOB_STATE_QUEUED"), HasSubstr("\"waiting\"")));
  EXPECT_THAT(page.Get("/api/GetJob?q=%7B%22id%22%3A%22" + job.id() + "%22%7D"),
              AllOf(StartsWith("HTTP/1.1 200 OK"), HasSubstr("\"memory_plan\"")));
  EXPECT_THAT(page.Get("/api/ListNodes"), StartsWith("HTTP/1.1 200 OK"));
  EXPECT_THAT(page.Get("/api/GetVersion"), HasSubstr("\"version\""));
}

TEST(Page, PlansJobById) {
  Page page;
  const v1::Job job = page.Submit();
  EXPECT_THAT(page.Get("/api/PlanJob?q=%7B%22id%22%3A%22" + job.id() + "%22%7D"),
              AllOf(StartsWith("HTTP/1.1 200 OK"), HasSubstr("\"instructions\""), HasSubstr("\"timeline\"")));
  EXPECT_THAT(page.Get("/api/PlanJob?q=%7B%22id%22%3A%22no-000000%22%7D"),
              AllOf(StartsWith("HTTP/1.1 404 "), HasSubstr("JOB_NOT_FOUND")));
  EXPECT_THAT(page.Get("/api/PlanJob?q=%7B%22spec%22%3A%7B%7D%7D"), StartsWith("HTTP/1.1 400 "));
}

TEST(Page, ErrorHasCodeReasonAndMessage) {
  Page page;
  EXPECT_THAT(page.Get("/api/GetJob?q=%7B%22id%22%3A%22no-000000%22%7D"),
              AllOf(StartsWith("HTTP/1.1 404 "), HasSubstr(R"("code":"NOT_FOUND")"),
                    HasSubstr(R"("reason":"JOB_NOT_FOUND")"), HasSubstr("no-000000")));
  for (const char* query :
       {"%7B", "%5B%5D", "%7B%22none%22%3A1%7D", "%7B%22page_size%22%3A%22x%22%7D", "%FF"}) {
    EXPECT_THAT(page.Get(absl::StrCat("/api/ListJobs?q=", query)),
                AllOf(StartsWith("HTTP/1.1 400 "), HasSubstr(R"("reason":"INVALID_REQUEST")")))
        << query;
  }
  EXPECT_THAT(page.Get("/api/ListJobs?q=" + std::string(kMaxWebQueryBytes + 1, '1')),
              AllOf(StartsWith("HTTP/1.1 400 "), HasSubstr("8 KiB")));
  EXPECT_THAT(page.Get("/api/ListJobs?q=" + std::string(kMaxHeadBytes, '1')), StartsWith("HTTP/1.1 431 "));
}

TEST(Page, ServesOnlyReadMethods) {
  for (const std::string& method : WebApi::Methods()) {
    const ApiMethod* const row = FindApiMethod(method);
    ASSERT_NE(row, nullptr) << method;
    EXPECT_FALSE(row->changes) << method;
    // The web UI works without methods that a viewer may not call.
    const PrincipalRole role = method == "PlanJob" ? PrincipalRole::kSubmitter : PrincipalRole::kViewer;
    EXPECT_EQ(row->role, role) << method;
  }
  Page page;
  for (const char* method : {"CancelJob", "SubmitJob", "WatchJob", "TailLogs", "", "getjob", "GetJob/x"}) {
    EXPECT_THAT(page.Get(absl::StrCat("/api/", method)),
                AllOf(StartsWith("HTTP/1.1 404 "), HasSubstr("UNIMPLEMENTED")))
        << method;
  }
}

TEST(Page, ServesSelfContainedFiles) {
  Page page;
  for (const char* path : {"/", "/page.js", "/page.css", "/icon.svg", "/dom.js", "/chart.js", "/steps.js",
                           "/job.js", "/jobs.js", "/nodes.js", "/numbers.js", "/timeline.js"}) {
    const std::string answer = page.Get(path);
    EXPECT_THAT(answer, AllOf(StartsWith("HTTP/1.1 200 OK"), HasSubstr("Content-Security-Policy"))) << path;
    EXPECT_THAT(answer, AllOf(Not(HasSubstr("https:")), Not(HasSubstr("innerHTML")))) << path;
  }
  for (const char* path : {"/index.html", "//", "/../etc/passwd", "/page.js/"})
    EXPECT_THAT(page.Get(path), StartsWith("HTTP/1.1 404 ")) << path;
}

TEST(Page, OpenServerRejectsForeignHosts) {
  Page page;
  for (const char* host : {"localhost", "localhost:7780", "127.0.0.1:1", "[::1]:80", "[::1]"})
    EXPECT_THAT(page.Get("/api/ListJobs", absl::StrCat("Host: ", host, "\r\n")), StartsWith("HTTP/1.1 200 "))
        << host;
  for (const char* host : {"evil.example", "127.0.0.1.evil.example:7780", "localhost.evil.example", ""})
    EXPECT_THAT(page.Get("/api/ListJobs", absl::StrCat("Host: ", host, "\r\n")), StartsWith("HTTP/1.1 421 "))
        << host;
}

TEST(Page, AuthenticatesAndAuditsRejections) {
  const std::string token = NewBearerToken();
  Page page("vera viewer " + HashOfToken(token) + "\n");
  EXPECT_THAT(page.Get("/"), StartsWith("HTTP/1.1 200 OK")) << "static files are public";
  EXPECT_THAT(
      page.Get("/api/ListJobs"),
      AllOf(StartsWith("HTTP/1.1 401 "), HasSubstr("WWW-Authenticate: Bearer"), HasSubstr("MISSING_TOKEN")));
  EXPECT_THAT(page.GetAs("fsdpd_0", "/api/ListNodes"),
              AllOf(StartsWith("HTTP/1.1 401 "), HasSubstr("UNKNOWN_TOKEN"), Not(HasSubstr("fsdpd_0"))));
  EXPECT_THAT(page.GetAs(token, "/api/ListJobs"), StartsWith("HTTP/1.1 200 OK"));
  for (const char* wrong : {"t\x01", "t\xff", "t\x7f"}) {
    EXPECT_THAT(page.GetAs(wrong, "/api/ListJobs"), StartsWith("HTTP/1.1 400 "))
        << "regression: gRPC aborted the process";
  }
  const std::string audit = page.AuditAfterEnd();
  EXPECT_THAT(audit, AllOf(HasSubstr(R"("method":"ListJobs")"), HasSubstr(R"("method":"ListNodes")"),
                           HasSubstr(R"("from":"ipv4:127.0.0.1:)")));
}

TEST(Page, IgnoresForwardedPeerOfClients) {
  Page page("vera viewer " + HashOfToken(NewBearerToken()) + "\n");
  page.AskThroughGrpc({{kForwardedPeer, "mars"}});
  page.Get("/api/ListNodes", absl::StrCat(kHost, kForwardedPeer, ": mars\r\n"));
  EXPECT_THAT(page.AuditAfterEnd(),
              AllOf(HasSubstr("ListJobs"), HasSubstr("ListNodes"), Not(HasSubstr("mars"))));
}

}  // namespace
}  // namespace fsdpd
