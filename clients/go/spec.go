package fsdpd

import (
	"encoding/json"
	"fmt"
	"strings"

	"fsdpd/clients/go/api"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// ReadSpec reads a spec that is written in JSON: names as in the proto or in camelCase, enums by their short names
// ("optim_grads_params") or their full ones, `env` as a map or a list. Paths are the nodes', and absolute. An unknown
// field or a value of another type is an *Error.
func ReadSpec(text []byte) (*api.JobSpec, error) {
	var tree any
	if err := json.Unmarshal(text, &tree); err != nil {
		return nil, badSpec(err)
	}
	spec := &api.JobSpec{}
	full, err := json.Marshal(canonical(tree, spec.ProtoReflect().Descriptor()))
	if err == nil {
		err = protojson.Unmarshal(full, spec)
	}
	if err != nil {
		return nil, badSpec(err)
	}
	return spec, nil
}

func badSpec(err error) error {
	return &Error{Code: codes.InvalidArgument, Reason: "BAD_SPEC", Message: fmt.Sprintf("the job spec: %v", err)}
}

// The tree with enums by their full names and variables as a list, which is proto's own JSON. What is not known stays
// as it is: the reader of that JSON refuses it.
func canonical(tree any, message protoreflect.MessageDescriptor) any {
	fields, isGroup := tree.(map[string]any)
	if !isGroup {
		return tree
	}
	made := map[string]any{}
	for name, value := range fields {
		field := message.Fields().ByName(protoreflect.Name(name))
		if field == nil {
			field = message.Fields().ByJSONName(name)
		}
		if field == nil {
			made[name] = value
			continue
		}
		if variables, isMap := value.(map[string]any); isMap && field.FullName() == "fsdpd.v1.JobSpec.env" {
			made[name] = listOf(variables)
			continue
		}
		if items, isList := value.([]any); isList {
			full := make([]any, len(items))
			for index, item := range items {
				full[index] = canonicalValue(item, field)
			}
			made[name] = full
			continue
		}
		made[name] = canonicalValue(value, field)
	}
	return made
}

func canonicalValue(value any, field protoreflect.FieldDescriptor) any {
	if field.Message() != nil {
		return canonical(value, field.Message())
	}
	word, isText := value.(string)
	if field.Enum() == nil || !isText {
		return value
	}
	// The zero value's name tells the prefix: STRATEGY_UNSPECIFIED.
	values := field.Enum().Values()
	prefix := strings.TrimSuffix(string(values.ByNumber(0).Name()), "UNSPECIFIED")
	for index := range values.Len() {
		each := values.Get(index)
		if each.Number() != 0 && prefix+strings.ToUpper(word) == string(each.Name()) && word == strings.ToLower(word) {
			return string(each.Name())
		}
	}
	return value
}

func listOf(variables map[string]any) []any {
	var list []any
	for name, value := range variables {
		list = append(list, map[string]any{"name": name, "value": fmt.Sprint(value)})
	}
	return list
}
