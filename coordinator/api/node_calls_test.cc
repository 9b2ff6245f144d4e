#include "coordinator/api/node_calls.h"

#include "coordinator/testing/reconciler_case.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class NodeCallsTest : public ReconcilerCase {
 protected:
  NodeCalls calls() { return NodeCalls(nodes_.get(), reconciler_.get(), board_.get(), &clock_); }
  std::vector<std::string> NamesBy(const std::string& order_by) {
    v1::ListNodesRequest request;
    request.set_order_by(order_by);
    v1::ListNodesResponse response;
    EXPECT_TRUE(calls().ListNodes({}, request, &response).ok());
    std::vector<std::string> names;
    for (const v1::Node& node : response.nodes()) names.push_back(node.name());
    return names;
  }
};

// The message was "node: is reserved".
TEST_F(NodeCallsTest, NodeNameErrorContainsTheName) {
  v1::PreflightNodeRequest request;
  request.set_node("preflight");
  v1::PreflightNodeResponse response;
  EXPECT_THAT(calls().PreflightNode({}, request, &response).message(),
              HasSubstr("node: 'preflight' is reserved"));
}

TEST_F(NodeCallsTest, OrdersNodesByFieldThenName) {
  Attach("b", 8);
  Attach("a", 4);
  Attach("d", 4);
  Attach("c", 2);
  EXPECT_THAT(NamesBy(""), ElementsAre("a", "b", "c", "d"));
  EXPECT_THAT(NamesBy("name desc"), ElementsAre("d", "c", "b", "a"));
  EXPECT_THAT(NamesBy("slots"), ElementsAre("c", "a", "d", "b"));
  EXPECT_THAT(NamesBy("free_slots desc"), ElementsAre("b", "a", "d", "c"));
  v1::ListNodesRequest request;
  v1::ListNodesResponse none;
  request.set_order_by("colour");
  EXPECT_THAT(calls().ListNodes({}, request, &none).message(),
              HasSubstr("the fields are name, slots, free_slots, last_seen_time"));
  request.set_filter("slots > 0");
  EXPECT_THAT(calls().ListNodes({}, request, &none).message(), HasSubstr("filter: is not supported"));
}

}  // namespace
}  // namespace fsdpd
