#include "fsdp/comm/tcp_group.h"

#include <absl/strings/match.h>
#include <absl/time/clock.h>
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/unique_fd.h"
#include "fsdp/comm/testing/communicator_test_ranks.h"

namespace fsdpd {
namespace {

using Groups = std::vector<std::unique_ptr<TcpGroup>>;

Groups MakeGroups(int size, absl::Duration timeout = absl::Minutes(1)) {
  LocalStore store;
  Groups groups(size);
  OnEveryRank(size, [&](int rank) {
    CommunicatorOptions options = Options(rank, size);
    options.operation_timeout = timeout;
    auto made = TcpGroup::Connect(options, &store);
    FSDPD_CHECK_OK(made.status());
    groups[rank] = *std::move(made);
  });
  return groups;
}

Slice SliceOf(std::vector<char>* bytes) { return {bytes->data(), static_cast<int64_t>(bytes->size())}; }

// More than the socket buffers between two ranks hold, so no rank can send everything before it receives.
constexpr size_t kLarge = 20 << 20;

TEST(TcpGroup, ExchangesMoreThanSocketBuffers) {
  constexpr int kRanks = 3;
  Groups groups = MakeGroups(kRanks);
  OnEveryRank(kRanks, [&](int rank) {
    std::vector<char> out(kLarge, static_cast<char>('a' + rank));
    std::vector<std::vector<char>> in(kRanks, std::vector<char>(kLarge));
    ASSERT_EQ(groups[rank]->Exchange([&](int) { return SliceOf(&out); },
                                     [&](int peer) { return SliceOf(&in[peer]); }),
              absl::OkStatus());
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer != rank) EXPECT_EQ(in[peer], std::vector<char>(kLarge, static_cast<char>('a' + peer)));
    }
  });
}

TEST(TcpGroup, MessagesAreIndependentOfExchanges) {
  Groups groups = MakeGroups(2);
  OnEveryRank(2, [&](int rank) {
    TcpGroup* const group = groups[rank].get();
    const int peer = 1 - rank;
    std::vector<char> sent(kLarge, static_cast<char>(rank)), received(kLarge), small = {'0', '1'}, got(2);
    std::thread sender([&] {
      EXPECT_EQ(group->SendTo(peer, SliceOf(&sent)), absl::OkStatus());
      EXPECT_EQ(group->SendTo(peer, SliceOf(&small)), absl::OkStatus());
    });
    ASSERT_EQ(group->Exchange([&](int) { return SliceOf(&small); }, [&](int) { return SliceOf(&got); }),
              absl::OkStatus());
    EXPECT_EQ(got, small);
    ASSERT_EQ(group->ReceiveFrom(peer, SliceOf(&received)), absl::OkStatus());
    EXPECT_EQ(received, std::vector<char>(kLarge, static_cast<char>(peer)));
    ASSERT_EQ(group->ReceiveFrom(peer, SliceOf(&got)), absl::OkStatus());
    sender.join();
  });
}

TEST(TcpGroup, RefusesDifferentLengths) {
  Groups groups = MakeGroups(2);
  OnEveryRank(2, [&](int rank) {
    std::vector<char> out(rank == 0 ? 3 : 5), in(rank == 0 ? 4 : 3);
    const absl::Status status =
        groups[rank]->Exchange([&](int) { return SliceOf(&out); }, [&](int) { return SliceOf(&in); });
    if (rank == 1) {
      EXPECT_EQ(status, absl::OkStatus());
    } else {
      EXPECT_EQ(status.message(), "rank 1 sent message 1 of 5 bytes, want message 1 of 4: an error in fsdpd");
    }
  });
}

TEST(TcpGroup, NamesASilentRank) {
  Groups groups = MakeGroups(3, absl::Milliseconds(50));
  std::vector<char> bytes(1);
  EXPECT_EQ(groups[0]->ReceiveFrom(2, SliceOf(&bytes)),
            absl::UnavailableError("rank 2: no data within 50ms"));
}

TEST(TcpGroup, BreakUnblocksReceivers) {
  Groups groups = MakeGroups(3);
  OnEveryRank(3, [&](int rank) {
    if (rank == 2) return groups[2]->Break("enough");
    std::vector<char> bytes(1);
    EXPECT_EQ(groups[rank]->ReceiveFrom(2, SliceOf(&bytes)),
              absl::UnavailableError("rank 2 closed the connection"));
  });
  std::thread waits([&] {
    std::vector<char> bytes(1);
    EXPECT_EQ(groups[0]->ReceiveFrom(1, SliceOf(&bytes)), absl::UnavailableError("aborted by rank 0"));
  });
  groups[0]->Break("aborted by rank 0");
  groups[0]->Break("a later reason");
  waits.join();
  std::vector<char> bytes(1);
  EXPECT_EQ(groups[0]->SendTo(1, SliceOf(&bytes)), absl::UnavailableError("aborted by rank 0"));
}

TEST(TcpGroup, BreakUnblocksASenderOnAFullSocket) {
  Groups groups = MakeGroups(3);
  std::vector<char> large(kLarge);
  std::thread sender([&] {
    EXPECT_EQ(groups[0]->SendTo(1, SliceOf(&large)), absl::UnavailableError("rank 1 closed the connection"));
  });
  std::thread root([&] {
    EXPECT_EQ(groups[0]->Exchange([&](int peer) { return peer == 1 ? SliceOf(&large) : Slice(); },
                                  [&](int) { return Slice(); }),
              absl::UnavailableError("rank 1 closed the connection"));
  });
  absl::SleepFor(absl::Milliseconds(50));  // Usually both are blocked by then; they fail in any case.
  groups[1]->Break("enough");
  sender.join();
  root.join();
}

// Port scanners, health checks and ranks of an earlier attempt.
TEST(TcpGroup, RejectsConnectionsWithoutTheToken) {
  class CallsFirst : public LocalStore {
   public:
    // Runs before any rank knows the address.
    absl::Status Set(const std::string& key, const std::string& value) override {
      if (key == "test/address/0") {
        sockaddr_in address = {};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        address.sin_port = htons(std::stoi(value.substr(value.find(':') + 1)));
        for (const size_t bytes : {0, 3, 40, 400}) {
          UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
          FSDPD_CHECK(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
          const std::string garbage(bytes, 'x');
          FSDPD_CHECK(send(fd.get(), garbage.data(), bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes));
          if (bytes != 400) strangers.push_back(std::move(fd));  // Stays open, or is closed immediately.
        }
      }
      return LocalStore::Set(key, value);
    }
    std::vector<UniqueFd> strangers;
  };
  CallsFirst store;
  OnEveryRank(3, [&](int rank) {
    auto made = TcpGroup::Connect(Options(rank, 3), &store);
    ASSERT_EQ(made.status(), absl::OkStatus());
    char own = static_cast<char>(rank);
    std::vector<char> all(3);
    EXPECT_EQ((*made)->Exchange(
                  [&](int) {
                    return Slice{&own, 1};
                  },
                  [&](int peer) {
                    return Slice{&all[peer], 1};
                  }),
              absl::OkStatus());
    for (int peer = 0; peer < 3; ++peer) EXPECT_EQ(all[peer], peer == rank ? 0 : peer);
    EXPECT_EQ((*made)->Exchange(
                  [&](int) {
                    return Slice{&own, 1};
                  },
                  [&](int peer) {
                    return Slice{&all[peer], 1};
                  }),
              absl::OkStatus());
  });
}

TEST(TcpGroup, NamesAnUnreachableRank) {
  LocalStore store;
  const std::string token(32, '0');
  ASSERT_TRUE(store.Set("test/address/0", "127.0.0.1:1 " + token).ok());
  auto refused = TcpGroup::Connect(Options(1, 2), &store);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(
      absl::StrContains(refused.status().message(),
                        "connecting to rank 0 at its bind address 127.0.0.1:1: connect: Connection refused"))
      << refused.status();
  ASSERT_TRUE(store.Set("other/address/1", "127.0.0.1:1 " + token).ok());
  CommunicatorOptions options = Options(0, 2);
  options.name = "other";
  options.rendezvous_timeout = absl::Milliseconds(50);
  auto missing = TcpGroup::Connect(options, &store);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(absl::StrContains(missing.status().message(), "rank 1 did not connect")) << missing.status();
  ASSERT_TRUE(store.Set("third/address/0", "nonsense").ok());
  options = Options(1, 2);
  options.name = "third";
  EXPECT_TRUE(
      absl::StrContains(TcpGroup::Connect(options, &store).status().message(),
                        "rank 0 published an invalid address (got 'nonsense', want HOST:PORT TOKEN)"));
}

}  // namespace
}  // namespace fsdpd
