package fsdpd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
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
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber() // As it is written: a float64 would round, and write a million as 1e+06.
	err := decoder.Decode(&tree)
	if err == nil {
		if _, after := decoder.Token(); after != io.EOF {
			err = fmt.Errorf("something follows at offset %d", decoder.InputOffset())
		}
	}
	if err != nil {
		return nil, badSpec(fmt.Errorf("is no JSON: %w", err))
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

// By name, so that the same text is the same spec each time: the order is no part of JSON's maps. What is no scalar
// stays as it is, and is refused.
func listOf(variables map[string]any) []any {
	var list []any
	for name, value := range variables {
		switch value.(type) {
		case string, json.Number, bool:
			value = fmt.Sprint(value)
		case nil:
			value = []any{} // Else it would be read as an empty text.
		}
		list = append(list, map[string]any{"name": name, "value": value})
	}
	slices.SortFunc(list, func(a, b any) int {
		return strings.Compare(a.(map[string]any)["name"].(string), b.(map[string]any)["name"].(string))
	})
	return list
}
