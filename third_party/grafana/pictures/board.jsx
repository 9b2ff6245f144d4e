// One of our boards as Grafana's own panels draw it: of `window.drawn`, {board, width, from, to, series}, where `series` has for
// each panel's id what Prometheus answered for each of its targets. Cells of a status history are drawn here, in Grafana's
// colours: that panel is part of its server, and not of its library.
import "uplot/dist/uPlot.min.css";
import {createRoot} from "react-dom/client";
import {FieldType, ThemeContext, createDataFrame, createTheme, dateTime, getDisplayProcessor} from "@grafana/data";
import {BarGauge, BigValue, BigValueColorMode, BigValueGraphMode, BigValueJustifyMode, BigValueTextMode, GlobalStyles,
  PanelChrome, TimeSeries} from "@grafana/ui";

const ROW = 38;  // Pixels of a board's unit of height, with the gap.
const GAP = 8;
const theme = createTheme({colors: {mode: "dark"}});
const {board, width, from, to, series} = window.drawn;

// What a panel's plug-in takes where the board says nothing.
const COLORED = {timeseries: {color: {mode: "palette-classic"}}};

const legendOf = (text, labels) => text.replace(/\{\{(\w+)\}\}/g, (_, name) => labels[name] ?? "");

const rangeOf = (values) => ({min: Math.min(...values), max: Math.max(...values), delta: Math.max(...values) - Math.min(...values)});

// A frame of times and a number for each series, on all moments that any of them has.
function frameOf(panel) {
  const found = panel.targets.flatMap((target, index) => (series[panel.id]?.[index] ?? []).map(
    ({labels, values}) => ({name: legendOf(target.legendFormat, labels), labels, values: new Map(values)})));
  const times = [...new Set(found.flatMap(({values}) => [...values.keys()]))].sort((a, b) => a - b);
  const defaults = {...COLORED[panel.type], ...panel.fieldConfig.defaults};
  const fields = found.map(({name, values}, index) => {
    const field = {
      name, type: FieldType.number, values: times.map((time) => values.get(time) ?? null),
      config: {...defaults, displayNameFromDS: name, custom: {
        lineInterpolation: "linear", axisPlacement: "auto", spanNulls: false, ...defaults.custom}},
      state: {seriesIndex: index, range: rangeOf([...values.values()])}};
    field.display = getDisplayProcessor({field, theme, timeZone: "utc"});
    return field;
  });
  const frame = createDataFrame({fields: [{name: "time", type: FieldType.time, values: times, config: {}}, ...fields]});
  frame.fields.forEach((field, index) => Object.assign(field, index ? fields[index - 1] : {}));
  return frame;
}

const newest = (field) => field.values.filter((value) => value !== null).at(-1);
const numbers = (frame) => frame.fields.slice(1);

function Lines({panel, frame, w, h}) {
  const shown = numbers(frame).slice(0, Math.max(1, Math.floor((h - 110) / 24)));
  const rows = numbers(frame).length > 1 ? shown : [];
  return <>
    <TimeSeries width={w} height={h - 24 * Math.max(1, rows.length)} frames={[frame]} timeRange={range} timeZone="utc"
                structureRev={1} legend={{showLegend: false, displayMode: "hidden", placement: "bottom", calcs: []}}
                options={panel.options}/>
    {(rows.length ? rows : numbers(frame)).map((field) => <Key key={field.name} field={field}/>)}
  </>;
}

function Key({field}) {
  const {text, suffix = ""} = field.display(newest(field));
  const {palette, getColorByName} = theme.visualization;
  const color = getColorByName(palette[field.state.seriesIndex % palette.length]);
  return <div style={{display: "flex", height: 24, alignItems: "center", gap: 8, fontSize: 12, overflow: "hidden"}}>
    <span style={{width: 14, height: 4, borderRadius: 2, background: color}}/>
    <span style={{flex: 1, whiteSpace: "nowrap", overflow: "hidden"}}>{field.name}</span><span>{text + suffix}</span>
  </div>;
}

function Stats({frame, w, h}) {
  const fields = numbers(frame), each = w / Math.max(1, fields.length);
  return <div style={{display: "flex"}}>{fields.map((field) => <BigValue
    key={field.name} width={each} height={h} theme={theme} colorMode={BigValueColorMode.Value}
    graphMode={BigValueGraphMode.Area} justifyMode={BigValueJustifyMode.Auto}
    textMode={fields.length > 1 ? BigValueTextMode.ValueAndName : BigValueTextMode.Value}
    value={{...field.display(newest(field)), title: field.name}}
    sparkline={{y: field, x: frame.fields[0], timeRange: {from, to}}}/>)}</div>;
}

function Bars({panel, frame, w, h}) {
  const fields = numbers(frame), most = Math.max(1, ...fields.map(newest));
  return fields.map((field) => <BarGauge
    key={field.name} width={w} height={Math.min(30, h / fields.length - 2)} theme={theme} orientation="horizontal"
    displayMode={panel.options.displayMode} showUnfilled={panel.options.showUnfilled} itemSpacing={4}
    text={{titleSize: 12, valueSize: 12}} field={{...field.config, min: 0, max: most}} display={field.display}
    value={{...field.display(newest(field)), title: field.name}}/>);
}

function Cells({frame, w, h}) {
  const fields = numbers(frame), all = fields.flatMap((field) => field.values).filter((value) => value !== null);
  const least = Math.min(...all), most = Math.max(...all);
  const shade = (value) => value === null ? "transparent"
    : `rgba(87, 148, 242, ${0.1 + 0.9 * (most > least ? (value - least) / (most - least) : 1)})`;
  return fields.map((field) => <div key={field.name} style={{display: "flex", height: h / fields.length, alignItems: "center"}}>
    <span style={{width: 150, fontSize: 12, overflow: "hidden", whiteSpace: "nowrap"}}>{field.name}</span>
    {field.values.map((value, at) => <span key={at} style={{flex: 1, height: "85%", margin: "0 1px", background: shade(value)}}/>)}
  </div>);
}

const range = {from: dateTime(from), to: dateTime(to), raw: {from: dateTime(from), to: dateTime(to)}};
const KINDS = {timeseries: Lines, stat: Stats, bargauge: Bars, "status-history": Cells};

function Panel({panel}) {
  const {x, y, w, h} = panel.gridPos;
  const place = {position: "absolute", left: x * width / 24, top: y * ROW};
  if (panel.type === "row") return <div style={{...place, fontSize: 16, padding: "6px 4px"}}>{panel.title}</div>;
  const frame = frameOf(panel), Kind = KINDS[panel.type];
  return <div style={place}>
    <PanelChrome title={panel.title} width={w * width / 24 - GAP} height={h * ROW - GAP}>
      {(innerWidth, innerHeight) => numbers(frame).length
        ? <Kind panel={panel} frame={frame} w={innerWidth} h={innerHeight}/>
        : <div style={{color: theme.colors.text.secondary, padding: 8}}>none here</div>}
    </PanelChrome>
  </div>;
}

function Board() {
  return <ThemeContext.Provider value={theme}>
    <GlobalStyles/>
    <div style={{position: "relative", background: theme.colors.background.canvas, color: theme.colors.text.primary,
                 height: Math.max(...board.panels.map(({gridPos}) => gridPos.y + gridPos.h)) * ROW, fontFamily: theme.typography.fontFamily}}>
      {board.panels.map((panel) => <Panel key={panel.id} panel={panel}/>)}
    </div>
  </ThemeContext.Provider>;
}

createRoot(document.getElementById("board")).render(<Board/>);
