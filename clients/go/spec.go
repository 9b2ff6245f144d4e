package fsdpd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"fsdpd/clients/go/api"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// ReadSpec parses a spec in JSON: field names as in the proto or in camelCase, enums by short ("optim_grads_params") or
// full name, `env` as a map or a list. Paths must be absolute paths on the nodes. It returns an *Error for an unknown
// field or a value of the wrong type.
func ReadSpec(text []byte) (*api.JobSpec, error) {
	var tree any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber() // Keeps digits as written: a float64 would round, and print a million as 1e+06.
	err := decoder.Decode(&tree)
	if err == nil {
		if _, after := decoder.Token(); after != io.EOF {
			err = fmt.Errorf("unexpected text at offset %d", decoder.InputOffset())
		}
	}
	if err != nil {
		return nil, badSpec(fmt.Errorf("invalid JSON: %w", err))
	}
	spec := &api.JobSpec{}
	if err := renamed(tree, spec.ProtoReflect().Descriptor(), ""); err != nil {
		return nil, badSpec(err)
	}
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
	return &Error{Code: codes.InvalidArgument, Reason: "INVALID_SPEC", Message: fmt.Sprintf("the job spec: %v", err)}
}

// renamed returns an error that names the current name of the first field with a name of release 0.1.
func renamed(tree any, message protoreflect.MessageDescriptor, path string) error {
	if items, isList := tree.([]any); isList {
		for index, item := range items {
			if err := renamed(item, message, fmt.Sprintf("%s[%d]", path, index)); err != nil {
				return err
			}
		}
		return nil
	}
	fields, isGroup := tree.(map[string]any)
	if !isGroup || message == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		place := strings.TrimPrefix(path+"."+name, ".")
		if current := currentName(string(message.FullName()), name); current != "" {
			return fmt.Errorf("%s: renamed to %s; use the new name [renamed_field]", place, current)
		}
		field := message.Fields().ByName(protoreflect.Name(name))
		if field == nil {
			field = message.Fields().ByJSONName(name)
		}
		if field != nil {
			if err := renamed(fields[name], field.Message(), place); err != nil {
				return err
			}
		}
	}
	return nil
}

// canonical converts the tree to protobuf's JSON: full enum names, and variables as a list. Unknown fields and values are
// unchanged, so that protojson rejects them.
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
	// The name of the zero value has the prefix: STRATEGY_UNSPECIFIED.
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

// listOf converts variables to a list, sorted by name because Go's maps have no order. Values that are not scalars are
// unchanged, so that protojson rejects them.
func listOf(variables map[string]any) []any {
	var list []any
	for name, value := range variables {
		switch value.(type) {
		case string, json.Number, bool:
			value = fmt.Sprint(value)
		case nil:
			value = []any{} // protojson would read null as an empty string; make it reject the value instead.
		}
		list = append(list, map[string]any{"name": name, "value": value})
	}
	slices.SortFunc(list, func(a, b any) int {
		return strings.Compare(a.(map[string]any)["name"].(string), b.(map[string]any)["name"].(string))
	})
	return list
}
