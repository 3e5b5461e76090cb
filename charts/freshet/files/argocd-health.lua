-- What Argo CD makes of an Experiment. It goes into the ConfigMap argocd-cm of Argo CD's namespace, under the key
-- resource.customizations.health.freshet.dev_Experiment. Argo CD gives it the object as `obj`.
--
-- Degraded is what an edit of the spec alone can mend; a table that is late, or not there yet, is on its way.
local hs = { status = "Progressing", message = "Nobody has looked at it yet" }

local function condition(kind)
  for _, c in ipairs(obj.status.conditions) do
    if c.type == kind then
      return c
    end
  end
  return { status = "Unknown" }
end

local function said(c)
  return c.message or c.reason or ""
end

if obj.metadata.deletionTimestamp ~= nil then
  hs.message = "It is being deleted"
  return hs
end
if obj.status == nil or obj.status.conditions == nil then
  return hs
end
if obj.status.observedGeneration ~= obj.metadata.generation then
  hs.message = "Its last edit has not been looked at yet"
  return hs
end

local stalled, reconciling = condition("Stalled"), condition("Reconciling")
local ready, fresh = condition("Ready"), condition("Fresh")
if stalled.status == "True" then
  return { status = "Degraded", message = said(stalled) }
end
if obj.spec.suspend then
  return { status = "Suspended", message = said(fresh) }
end
if reconciling.status == "True" then
  hs.message = said(reconciling)
  return hs
end
if ready.status ~= "True" then
  hs.message = said(ready)
  return hs
end
if fresh.status == "False" then
  hs.message = said(fresh)
  return hs
end
return { status = "Healthy", message = said(fresh) }
