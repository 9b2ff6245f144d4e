package fsdpd

import (
	"fmt"
	"strings"
	"testing"

	"fsdpd/clients/go/api"

	"google.golang.org/protobuf/proto"
)

func TestReadsShortAndFullNamesAndVariableMaps(t *testing.T) {
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

func TestKeepsNumbersAndSortsVariables(t *testing.T) {
	text := `{"name": "x", "train": {"seed": 9007199254740993}, "env": {"NCCL_B": 1048576, "NCCL_A": true, "NCCL_C": 0.10}}`
	for range 20 {
		spec, err := ReadSpec([]byte(text))
		if err != nil || spec.GetTrain().GetSeed() != 9007199254740993 {
			t.Fatalf("%v, %v", err, spec)
		}
		var env []string
		for _, each := range spec.GetEnv() {
			env = append(env, each.GetName()+"="+each.GetValue())
		}
		if got := strings.Join(env, " "); got != "NCCL_A=true NCCL_B=1048576 NCCL_C=0.10" {
			t.Fatal(got)
		}
	}
	for _, value := range []string{"null", "[1]", `{"a": 1}`} {
		if _, err := ReadSpec([]byte(`{"name": "x", "env": {"NCCL_A": ` + value + `}}`)); err == nil {
			t.Errorf("%s was read", value)
		}
	}
}

func TestRejectsInvalidSpec(t *testing.T) {
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
		if err == nil || ReasonOf(err) != "INVALID_SPEC" || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestRejectsFieldsOfRelease01(t *testing.T) {
	for _, each := range renamedFields {
		form, known := map[string]string{"Data": `{"data": {"%s": 1}}`, "InitialValues": `{"train": {"initial": {"%s": 1}}}`,
			"Plugin.Unit": `{"model": {"plugin": {"units": [{"%s": 1}]}}}`}[each.message]
		if !known {
			t.Fatalf("add a spec with a %s", each.message)
		}
		text := fmt.Sprintf(form, each.before)
		if _, err := ReadSpec([]byte(text)); err == nil || !strings.Contains(err.Error(), "renamed to "+each.name) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
