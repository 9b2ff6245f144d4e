package fsdpd

import (
	"strings"
	"testing"

	"fsdpd/clients/go/api"

	"google.golang.org/protobuf/proto"
)

func TestASpecIsReadWithShortNamesFullOnesAndVariablesAsAMap(t *testing.T) {
	short := `{"name": "x", "resources": {"device": "cpu", "ranks_per_node": 2}, "fsdp": {"strategy": "optim_grads"},
		"data": {"tokens": [{"path": "/a", "type": "u8"}]}, "env": {"NCCL_DEBUG": "WARN"}}`
	full := `{"name": "x", "resources": {"device": "DEVICE_CPU", "ranksPerNode": "2"},
		"fsdp": {"strategy": "STRATEGY_OPTIM_GRADS"}, "data": {"tokens": [{"path": "/a", "type": "TOKEN_TYPE_U8"}]},
		"env": [{"name": "NCCL_DEBUG", "value": "WARN"}]}`
	one, err := ReadSpec([]byte(short))
	if err != nil {
		t.Fatal(err)
	}
	other, err := ReadSpec([]byte(full))
	if err != nil || !proto.Equal(one, other) {
		t.Errorf("%v\n%v\n%v", err, one, other)
	}
	if one.GetFsdp().GetStrategy() != api.Strategy_STRATEGY_OPTIM_GRADS || one.GetData().GetTokens()[0].GetType() == 0 {
		t.Errorf("read as %v", one)
	}
}

func TestABadSpecIsRefusedWithWhatIsWrong(t *testing.T) {
	for text, word := range map[string]string{
		`{"nmae": "x"}`:                         "nmae",
		`{"train": {"steps": "many"}}`:          "many",
		`{"resources": {"device": "tpu"}}`:      "tpu",
		`{"resources": {"device": "CPU"}}`:      "CPU",
		`{"resources": 3}`:                      "3",
		`{"name": "x"`:                          "JSON",
		`{"data": {"tokens": [{"tpye": "x"}]}}`: "tpye",
	} {
		_, err := ReadSpec([]byte(text))
		if err == nil || ReasonOf(err) != "BAD_SPEC" || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
