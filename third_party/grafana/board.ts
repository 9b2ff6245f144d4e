// A dashboard as Grafana's own types have it, and as its JSON is written: an enum's value in place of its name, and of a
// panel's options those that it sets. What is in neither is a fault, misspelt names among it.
import type {AnnotationQuery, Dashboard, FieldConfig, Panel, RowPanel} from "@grafana/schema";
import type * as bargauge from "@grafana/schema/dist/esm/raw/composable/bargauge/panelcfg/x/BarGaugePanelCfg_types.gen";
import type * as stat from "@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type * as history from "@grafana/schema/dist/esm/raw/composable/statushistory/panelcfg/x/StatusHistoryPanelCfg_types.gen";
import type * as series from "@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";

type Written<T> = T extends string ? `${T}`
  : T extends (infer Each)[] ? Written<Each>[]
  : T extends object ? {[Key in keyof T]: Written<T[Key]>}
  : T;
type Partly<T> = T extends unknown[] ? T : T extends object ? {[Key in keyof T]?: Partly<T[Key]>} : T;

type PanelOf<Type extends string, Options, Custom> = Omit<Written<Panel>, "type" | "options" | "fieldConfig"> & {
  type: Type;
  options: Partly<Written<Options>>;
  fieldConfig: Omit<Written<NonNullable<Panel["fieldConfig"]>>, "defaults"> & {
    defaults: Omit<Written<FieldConfig>, "custom"> & {custom?: Partly<Written<Custom>>};
  };
};
// Another type of panel is one line more.
type AnyPanel = PanelOf<"timeseries", series.Options, series.FieldConfig>
  | PanelOf<"stat", stat.Options, Record<string, never>>
  | PanelOf<"status-history", history.Options, history.FieldConfig>
  | PanelOf<"bargauge", bargauge.Options, Record<string, never>>;
type Row = Omit<Written<RowPanel>, "panels"> & {type: "row"; panels: AnyPanel[]};

export type Board = Omit<Written<Dashboard>, "panels" | "annotations"> & {
  panels: (AnyPanel | Row)[];
  // A query of Prometheus, of which the schema knows what every source has.
  annotations: {list: (Written<AnnotationQuery> & {expr: string; step: string; titleFormat: string; useValueForTime: boolean})[]};
};
