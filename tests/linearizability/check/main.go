// Whether a history of a register is linearizable: check HISTORY.json SECONDS
//
// Exit code 0: it is; 1: it is not; 2: not decided in time, or no history.
package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/anishathalye/porcupine"
)

// Operation is one call of a client. Times are nanoseconds of one clock. A write without a return
// has an unknown outcome: it may take effect at any time after its call, or never.
type Operation struct {
	Client int    `json:"client"`
	Kind   string `json:"kind"`
	Value  int    `json:"value"`
	Call   int64  `json:"call"`
	Return *int64 `json:"return"`
}

type input struct {
	write bool
	value int
}

var register = porcupine.Model{
	Init: func() interface{} { return 0 },
	Step: func(state, in, out interface{}) (bool, interface{}) {
		operation := in.(input)
		if operation.write {
			return true, operation.value
		}
		return out.(int) == state.(int), state
	},
	Equal: func(one, other interface{}) bool { return one == other },
	DescribeOperation: func(in, out interface{}) string {
		operation := in.(input)
		if operation.write {
			return fmt.Sprintf("write %d", operation.value)
		}
		return fmt.Sprintf("read %d", out.(int))
	},
}

// The operations as the checker takes them. Values are written once each, so that a write of an
// unknown outcome which nobody read can be left out: wherever it stood, another write stands between
// it and the next read. One that was read took effect before that read returned.
func taken(history []Operation) []porcupine.Operation {
	read := map[int]int64{}
	for _, each := range history {
		if each.Kind != "read" || each.Return == nil {
			continue
		}
		if at, found := read[each.Value]; !found || *each.Return < at {
			read[each.Value] = *each.Return
		}
	}
	var operations []porcupine.Operation
	for _, each := range history {
		end := int64(math.MaxInt64)
		if each.Return != nil {
			end = *each.Return
		} else if at, found := read[each.Value]; each.Kind != "write" || !found {
			continue
		} else if at < each.Call {
			end = each.Call // read before it was written: no order of them will do
		} else {
			end = at
		}
		operations = append(operations, porcupine.Operation{
			ClientId: each.Client,
			Input:    input{each.Kind == "write", each.Value},
			Call:     each.Call,
			Output:   each.Value,
			Return:   end,
		})
	}
	return operations
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: check HISTORY.json SECONDS")
		os.Exit(2)
	}
	data, err := os.ReadFile(os.Args[1])
	var history []Operation
	if err == nil {
		err = json.Unmarshal(data, &history)
	}
	seconds, wrong := strconv.Atoi(os.Args[2])
	if err != nil || wrong != nil {
		fmt.Fprintln(os.Stderr, err, wrong)
		os.Exit(2)
	}
	operations := taken(history)
	limit := time.Duration(seconds) * time.Second
	result := porcupine.CheckOperationsTimeout(register, operations, limit)
	fmt.Printf("%s: %d operations\n", result, len(operations))
	switch result {
	case porcupine.Ok:
		os.Exit(0)
	case porcupine.Illegal:
		os.Exit(1)
	default:
		os.Exit(2)
	}
}
